# SPDX-License-Identifier: Apache-2.0
"""`rdmatensor top`."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

    from ..watching import Reading, View

_EDGES = 5
_GROUPS = 5


@click.command()
@click.argument("tasks", nargs=-1, metavar="[HOST:PORT]...")
@click.option("--interval", metavar="SECONDS", type=click.FloatRange(0.1, 3600), default=1.0,
              show_default=True, help="Time between two readings, which rates refer to.")  # fmt: skip
@click.option(
    "--once", is_flag=True, help="Read twice, print, and exit; the default without a terminal."
)
@click.option("--json", "as_json", is_flag=True, help="Read twice and print JSON.")
def top(tasks: Sequence[str], interval: float, once: bool, as_json: bool) -> None:
    """Watch running tasks: transports between peers, bytes by path, waits, memory and faults.

    Reads the metrics that tasks serve at HOST:PORT, at HOST:FIRST-LAST for several, or at PORT on this
    machine; the default is RDMATENSOR_METRICS. A task serves metrics if it calls
    rdmatensor.metrics.serve(), or if `rdmatensor launch --metrics-port` started it.

    The exit status is 1 if no task can be read, otherwise 0.

    \b
    Examples:
      rdmatensor top localhost:9100-9103
      rdmatensor top node1:9100 node2:9100 --interval 5
      rdmatensor top 9100 --json | jq '.[].slow_edges[0]'
    """
    from rich.console import Console

    from .. import watching

    try:
        addresses = watching.addresses(tasks or _default())
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    console = Console(highlight=False, markup=False, emoji=False)
    try:
        if once or as_json or not console.is_terminal:
            _print_once(console, addresses, interval, as_json)
        else:
            _watch(console, addresses, interval)
    except KeyboardInterrupt:
        sys.exit(130)


def _default() -> list[str]:
    from ... import config

    port = config.get("METRICS").rpartition(":")[2]
    if not port:
        raise click.UsageError(
            "expected HOST:PORT of a task's metrics (docs/metrics.md), or RDMATENSOR_METRICS"
        )
    return [port]


def _looks(addresses: Sequence[str], interval: float) -> Iterator[list[View]]:
    """Yield a view of each task, again and again. Rates are 0 in the first views."""
    from ..watching import NotReadable, View, read_all, view

    before: dict[str, Reading] = {}
    while True:
        views = []
        begun = time.monotonic()
        for address, found in read_all(addresses).items():
            if isinstance(found, NotReadable):
                before.pop(address, None)
                views.append(View(address, error=str(found)))
            else:
                views.append(view(address, before.get(address, found), found))
                before[address] = found
        yield views
        time.sleep(max(0.0, interval - (time.monotonic() - begun)))


def _print_once(console: Console, addresses: Sequence[str], interval: float, as_json: bool) -> None:
    looks = _looks(addresses, interval)
    views = next(looks)
    if not all(each.error for each in views):
        views = next(looks)
    if as_json:
        click.echo(json.dumps([asdict(each) for each in views], indent=2))
    else:
        console.print(_screen(views))
    if all(each.error for each in views):
        sys.exit(1)


def _watch(console: Console, addresses: Sequence[str], interval: float) -> None:
    from rich.live import Live

    with Live(console=console, screen=True, auto_refresh=False) as live:
        for views in _looks(addresses, interval):
            live.update(_screen(views), refresh=True)


def _screen(views: Sequence[View]) -> RenderableType:
    from rich.console import Group

    parts: list[RenderableType] = []
    for each in views:
        parts += _task(each)
    return Group(*parts)


def _task(view: View) -> list[RenderableType]:
    from rich.text import Text

    if view.error:
        return [Text(f"{view.address}: {view.error}", style="red")]
    rank = f"rank {view.training['rank']} of {view.training['size']}" if view.training else ""
    names = ", ".join([*(short(task) for task in view.tasks), *filter(None, [rank])])
    if not names and view.groups:
        names = f"rank {view.groups[0]['rank']} of {view.groups[0]['size']}"
    names = names or "no grpc+rdma server and no training yet"
    parts: list[RenderableType] = [Text(f"{names} at {view.address}", style="bold")]
    if view.groups:
        parts.append(_groups(view))
    if not view.plugin and view.groups:
        return [*parts, *_alarms(view), Text("")]
    if not view.plugin:
        text = (
            "  the TensorFlow plugin is not loaded there, or not yet, while TensorFlow is imported"
        )
        return [*parts, Text(text, style="yellow"), Text("")]
    if view.peers:
        parts.append(_peers(view))
    for each in view.control:
        way = f"over {each['way']}, {each['why']}; {each['calls_per_s']:.0f} calls/s"
        parts.append(Text(f"  steps at {short(each['peer'])} start {way}"))
    if any(counts["sent_tensors"] + counts["received_tensors"] for counts in view.paths.values()):
        parts.append(_paths(view))
    if view.slow_edges:
        parts.append(_edges(view))
    if view.training:
        parts += _training(view.training)
    parts.append(Text(_memory(view)))
    return [*parts, *_alarms(view), Text("")]


def _alarms(view: View) -> list[RenderableType]:
    from rich.text import Text

    alarms = {name: count for name, count in {**view.faults, **view.fallbacks}.items() if count}
    if not alarms:
        return []
    words = ", ".join(f"{name.replace('_', ' ')} {count:.0f}" for name, count in alarms.items())
    return [Text(f"  since the start: {words}", style="yellow")]


def short(task: str) -> str:
    """Shorten "/job:worker/replica:0/task:0" to "worker 0". Other text stays as it is."""
    parts = dict(part.partition(":")[::2] for part in task.strip("/").split("/"))
    return f"{parts['job']} {parts['task']}" if {"job", "task"} <= parts.keys() else task


def _table(*headings: str) -> Table:
    """Return a table whose middle columns are numbers, and whose last column may wrap."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column(f"  {headings[0]}", no_wrap=True)
    for heading in headings[1:-1]:
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column(headings[-1])
    return table


def _peers(view: View) -> Table:
    from rich.text import Text

    from ...units import size

    table = _table("peer", "tensors/s", "bytes/s", "waiting", "by", "why")
    for peer in view.peers:
        to_or_from = "from" if peer["direction"] == "receive" else "to"
        ready = peer["state"] == "ready"
        table.add_row(
            f"  {to_or_from} {short(peer['peer'])}",
            f"{peer['tensors_per_s']:.0f}",
            size(peer["bytes_per_s"]),
            f"{peer['waiting']:.2f}" if to_or_from == "from" else "",
            Text(peer["transport"] if ready else peer["state"], "green" if ready else "yellow"),
            Text(peer["why"]),
        )
    return table


def _paths(view: View) -> Table:
    from ...units import size

    table = _table("path", "sent/s", "", "received/s", "", "sent and received so far")
    for path, counts in view.paths.items():
        if not counts["sent_tensors"] + counts["received_tensors"]:
            continue
        table.add_row(
            f"  {path}",
            f"{counts['sent_tensors_per_s']:.0f}",
            size(counts["sent_bytes_per_s"]),
            f"{counts['received_tensors_per_s']:.0f}",
            size(counts["received_bytes_per_s"]),
            f"{size(counts['sent_bytes'])}, {size(counts['received_bytes'])}",
        )
    return table


def _edges(view: View) -> Table:
    from rich.text import Text

    from ...units import duration

    table = _table("waited for", "times", "mean", "longest", "waiting", "edge")
    for edge in view.slow_edges[:_EDGES]:
        table.add_row(
            f"  {short(edge['peer'])}",
            f"{edge['waits']:.0f}",
            duration(edge["wait_seconds"] / max(1.0, edge["waits"])),
            duration(edge["longest_seconds"]),
            f"{edge['waiting']:.2f}",
            Text(edge["edge"] or "(not planned)"),
        )
    return table


def _groups(view: View) -> Table:
    from rich.text import Text

    from ...units import size

    table = _table("group", "rank", "operations/s", "sent/s", "copied/s", "sent so far")
    for group in view.groups[:_GROUPS]:
        table.add_row(
            f"  {group['group']}",
            f"{group['rank']} of {group['size']}",
            f"{group['operations_per_s']:.0f}",
            size(group["bytes_per_s"]),
            size(group["copied_bytes_per_s"]),
            Text(size(group["bytes"])),
        )
    return table


def _training(found: Mapping[str, Any]) -> list[RenderableType]:
    from rich.text import Text

    from ...units import size

    table = _table("between processes", "per s", "bytes/s", "busy", "waiting", "")
    for each in found["operations"][:_EDGES]:
        table.add_row(
            f"  {each['operation']}",
            f"{each['per_s']:.0f}",
            size(each["bytes_per_s"]),
            f"{each['busy']:.2f}",
            f"{each['waiting']:.2f}",
            "",
        )
    rank, most = max(found["late"].items(), key=lambda each: float(each[1]), default=("", 0.0))
    last = f", mostly for rank {rank}" if most > 0 else ""
    words = (
        f"  training: sends {size(found['sent_bytes_per_s'])}/s; communicates {100 * found['busy']:.0f} % of "
        f"the time, {100 * found['exposed']:.0f} % exposed, waits {found['waiting']:.2f}{last}"
    )
    return [Text(words), table]


def _memory(view: View) -> str:
    from ...units import size

    memory, waits = view.memory, view.credits
    return (
        f"  arena {size(memory['arena_used_bytes'])} of {size(memory['arena_reserved_bytes'])} registered"
        f" (limit {size(memory['arena_limit_bytes'])}), places {size(memory['place_bytes'])};"
        f" no place free {waits['busy_per_s']:.0f}/s, no credit {waits['queued_per_s']:.0f}/s,"
        f" pending {waits['pending']:.0f}"
    )
