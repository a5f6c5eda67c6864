# SPDX-License-Identifier: Apache-2.0
"""`rdmatensor info`."""

from __future__ import annotations

import json
import platform
from typing import Any

import click

_PROBE_SECONDS = 60.0


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def info(as_json: bool = False) -> None:
    """Show what is installed, the transports of this machine, and the settings in force.

    Each setting is shown with its value and its source. `rdmatensor doctor` finds faults and suggests
    remedies.

    \b
    Examples:
      rdmatensor info
      rdmatensor info --json | jq .transports
    """
    from ..doctor import child

    probe = child.call("rdmatensor._tools.doctor.probe", "look", _PROBE_SECONDS)
    if probe.value is None:
        raise click.ClickException(f"the core {probe.why_not}: see rdmatensor doctor")
    facts = _facts(probe.value)
    if as_json:
        click.echo(json.dumps(facts, indent=2))
    else:
        _show(facts)


def _facts(report: dict[str, Any]) -> dict[str, Any]:
    from ..doctor import framework

    built = framework.build()
    return {
        "version": report["version"],
        "python": platform.python_version(),
        "kernel": platform.release(),
        "compiler": built.get("compiler", ""),
        "tensorflow": framework.version(),
        "plugin": {
            "built_for": built.get("tensorflow") or "",
            "not_built_because": built.get("no_tensorflow_because", ""),
        },
        "verbs_not_built_because": built.get("no_verbs_because", ""),
        "transports": report["transports"],
        "errors": report["errors"],
        "registrable": report["registrable"],
        "settings": report["settings"],
        "refused": report["refused"],
    }


def _show(facts: dict[str, Any]) -> None:
    plugin = facts["plugin"]
    why_no_verbs = facts["verbs_not_built_because"]
    built = f"built for {plugin['built_for']}" if plugin["built_for"] else "not built: "
    click.echo(f"rdmatensor {facts['version']} ({facts['compiler']})")
    click.echo(f"Python {facts['python']}, Linux {facts['kernel']}")
    click.echo(f"TensorFlow: {facts['tensorflow'] or 'not installed'}")
    click.echo(f"TensorFlow plugin: {built}{plugin['not_built_because']}")
    click.echo(f"RDMA verbs: {'not built: ' if why_no_verbs else 'built'}{why_no_verbs}")
    for error in facts["errors"]:
        click.echo(f"No device can be opened: {error}")
    for name, found in facts["transports"].items():
        state = found["text"] or "usable" if found["usable"] else f"not usable: {found['text']}"
        click.echo(f"Transport {name}: {state}")
    for why in facts["refused"].values():
        click.echo(f"Refused: {why}")
    click.echo("Settings (environment variables RDMATENSOR_<NAME>):")
    rows = [(s["name"], s["value"], s["source"], s["range"], s["doc"]) for s in facts["settings"]]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        click.echo("  " + "  ".join([*cells, row[4]]))
