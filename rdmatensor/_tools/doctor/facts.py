# SPDX-License-Identifier: Apache-2.0
"""`rdmatensor doctor --info`: what is installed, the transports of this machine, and the settings."""

from __future__ import annotations

import platform
from typing import Any

import click

from ..._api.extras import build_info
from . import child, framework

_PROBE_SECONDS = 60.0


def facts() -> dict[str, Any]:
    """Return the facts by name. Raises RuntimeError if the core does not tell them."""
    probe = child.call("rdmatensor._tools.doctor.probe", "look", _PROBE_SECONDS, [False])
    if probe.value is None:
        raise RuntimeError(f"the core {probe.why_not}: see rdmatensor doctor")
    report, built = probe.value, build_info()
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


def show(facts: dict[str, Any]) -> None:
    """Print the facts for people."""
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
