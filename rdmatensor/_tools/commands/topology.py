# SPDX-License-Identifier: Apache-2.0
"""`rdmatensor topology`."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from ..._api.collective import Kind
    from ...topology.model import Topology
    from ...topology.pack import Packing

_PATIENCE = 60.0  # seconds for each wait while probing
KINDS = ("all_reduce", "broadcast", "all_gather", "reduce_scatter")


@click.command()
@click.argument("source", metavar="FILE|NAME", required=False)
@click.option(
    "--probe", is_flag=True, help="Measure the links of processes that a launcher started."
)
@click.option("--plan", "kind", type=click.Choice(KINDS), help="Find the trees for this operation.")
@click.option("--root", metavar="RANK", default=0, show_default=True, help="Root of a broadcast.")
@click.option("--members", metavar="RANKS", help="Only these members, such as 0,2,3.")
@click.option(
    "--svg", metavar="FILE", type=click.Path(path_type=Path), help="Draw the links, and the trees."
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def topology(source: str | None, probe: bool, kind: Kind | None, **options: Any) -> None:
    """Show the links between members of a group, and the trees that fill them.

    FILE is JSON as docs/topology.md describes it, NAME a topology that comes with the package. Without an
    argument, prints these names. --plan needs SciPy: pip install 'rdmatensor[topology]'.

    With --probe, every process that `rdmatensor launch` or another launcher starts measures the links between
    them for some seconds, and the first one prints what they found.

    The exit status is 1 if the file is no topology, a member cannot be reached, or probing failed.

    \b
    Examples:
      rdmatensor topology
      rdmatensor topology dgx1-v100 --plan broadcast
      rdmatensor topology cluster.json --plan all_reduce --svg trees.svg
      rdmatensor topology dgx1-v100 --members 0,3,4 --plan broadcast --json
      rdmatensor launch -n 4 $(command -v rdmatensor) topology --probe --json
    """
    from ...errors import RdmaError
    from ...topology.model import load, recorded_names

    if probe and source is not None:
        raise click.UsageError("give a file or --probe, not both")
    if source is None and not probe:
        click.echo("\n".join(recorded_names()))
        return
    try:
        read = load(source) if source is not None else _probe()
        if read is None:
            return  # the first process prints
        if options["members"]:
            read = _part(read, options["members"])
        packing = None
        if kind is not None:
            from ...topology.pack import pack

            packing = pack(read, kind, options["root"])
    except RdmaError as error:
        click.echo(f"rdmatensor topology: {error}", err=True)
        sys.exit(1)
    if options["svg"]:
        from ...topology.picture import svg

        options["svg"].write_text(svg(read, packing))
    if options["as_json"]:
        found = packing and {
            **packing._asdict(),
            "trees": [each._asdict() for each in packing.trees],
        }
        click.echo(json.dumps({"topology": read.to_json(), "packing": found}))
    else:
        _show(read, packing)


def _probe() -> Topology | None:
    """Return what the first of all processes found; None in the others."""
    from ...device import Device
    from ...errors import UsageError
    from ...topology.probing import probe
    from ..roles import join, role_of

    role = role_of(os.environ, None, None, None)
    if role.size == 1:
        raise UsageError("--probe needs several processes: rdmatensor launch -n 4 ...")
    port = int(role.root.rpartition(":")[2]) if role.rank == 0 else 0
    with (
        Device(f"rank {role.rank}", port=port) as device,
        join(device, role, "probe", _PATIENCE) as group,
    ):
        found = probe(group, timeout=_PATIENCE)
    return found if role.rank == 0 else None


def _part(read: Topology, text: str) -> Topology:
    from ...errors import UsageError

    try:
        ranks = [int(each) for each in text.split(",")]
        return read.only(dict.fromkeys(ranks))
    except (ValueError, IndexError):
        raise UsageError(f"--members {text}: give ranks below {read.size}, such as 0,2") from None


def _show(read: Topology, packing: Packing | None) -> None:
    from ... import units

    nodes = units.count(read.size, "member") + (
        f", {len(read.switches)} switch" + "es" * (len(read.switches) != 1) if read.switches else ""
    )
    click.echo(f"{read.name}\n{nodes}, {units.count(len(read.links), 'directed link')}")
    if packing is None:
        for link in read.links:
            click.echo(f"  {link.source} -> {link.target}: {units.size(link.bandwidth)}/s")
        return
    click.echo(
        f"{packing.kind}: {units.size(packing.rate)}/s over {units.count(len(packing.trees), 'tree')}; "
        f"no trees exceed {units.size(packing.bound)}/s"
    )
    for tree in packing.trees:
        names = [read.members[each].name for each in tree.parents]
        edges = [
            f"{parent}-{member.name}"
            for member, parent in zip(read.members, names, strict=True)
            if member.name != parent
        ]
        click.echo(
            f"  {units.size(tree.rate)}/s from {read.members[tree.root].name}: {' '.join(edges)}"
        )
