# SPDX-License-Identifier: Apache-2.0
"""`rdmatensor doctor`."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rich.console import Console

    from ..doctor.finding import Finding

_COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}
_WIDTH = 20


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--quick", is_flag=True, help="Do not import TensorFlow.")
@click.option("--info", is_flag=True,
              help="Only show what is installed, the transports, and all settings.")  # fmt: skip
def doctor(as_json: bool = False, quick: bool = False, info: bool = False) -> None:
    """Check this machine: library, settings, RDMA devices, limits, TensorFlow.

    Each finding is ok, warn or fail, and suggests a remedy. Over each usable transport, two devices of this
    machine connect, write, read and compare.

    The exit status is 1 if a finding is "fail", otherwise 0.

    \b
    Examples:
      rdmatensor doctor
      rdmatensor doctor --json | jq '.findings[] | select(.state != "ok")'
      rdmatensor doctor --info --json | jq .transports
      rdmatensor softroce run -- rdmatensor doctor      with RDMA in software
    """
    if info:
        _inform(as_json)
        return
    from rich.console import Console

    from ..doctor.examine import examine

    found: list[Finding] = []
    console = Console(highlight=False, soft_wrap=True)
    with Console(stderr=True).status("examining") as status:
        for finding in examine(not quick, lambda text: status.update(text)):
            found.append(finding)
            if not as_json:
                _show(console, finding)
    failed = [finding for finding in found if finding.state == "fail"]
    if as_json:
        text = {"ok": not failed, "findings": [asdict(finding) for finding in found]}
        click.echo(json.dumps(text, indent=2))
    sys.exit(1 if failed else 0)


def _inform(as_json: bool) -> None:
    from ..doctor import facts

    try:
        found = facts.facts()
    except RuntimeError as error:
        raise click.ClickException(str(error)) from None
    if as_json:
        click.echo(json.dumps(found, indent=2))
    else:
        facts.show(found)


def _show(console: Console, finding: Finding) -> None:
    from rich.text import Text

    line = Text.assemble(
        (f"{finding.state:<6}", _COLOURS[finding.state]),
        (f"{finding.area:<{_WIDTH}}", "bold"),
        finding.text,
    )
    indent = " " * (6 + _WIDTH)
    for detail in finding.details:
        line.append(f"\n{indent}{detail}")
    if finding.remedy:
        arrow = "→" if console.encoding.startswith("utf") else "->"
        line.append(f"\n{indent}{arrow} {finding.remedy}")
    console.print(line)
