# SPDX-License-Identifier: Apache-2.0
"""Renders a plan as tables for a terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table

from rdmatensor.units import count, duration, short_task, size

from ..model.plan import CLASSES, Difference, Edge, Shape, TransferPlan
from .advice import advise, hot_spots
from .cost import Network, predict


def shape_text(shape: Shape) -> str:
    """A shape in words: "64 x ?", "scalar" or "unknown rank"."""
    if shape is None:
        return "unknown rank"
    return " x ".join("?" if dim is None else str(dim) for dim in shape) or "scalar"


def headline(plan: TransferPlan) -> str:
    """The plan in one sentence."""
    known = f"{size(plan.step_bytes)} per step in {count(len(plan.edges), 'tensor')}"
    unknown = f", {plan.unknown} of unknown size" if plan.unknown else ""
    return f"{known}{unknown}; {plan.static_share:.1%} of the bytes static"


def classes_text(plan: TransferPlan) -> str:
    """The tensors and the bytes of each class in the plan."""
    totals = plan.bytes_by_class()
    parts = []
    for name in CLASSES:
        tensors = sum(edge.plan_class == name for edge in plan.edges)
        if tensors:
            parts.append(f"{name} {count(tensors, 'tensor')}, {size(totals[name])}")
    return "; ".join(parts) or "nothing travels"


def operations_text(plan: TransferPlan) -> str:
    """How many tensors share the operations that send and receive them, and why others do not."""
    tensors, operations = plan.operations()
    parts = [f"{count(tensors, 'tensor')} sent by {count(operations, 'operation')}"] * bool(tensors)
    reasons = Counter(edge.alone for edge in plan.edges if edge.operation is None)
    parts += [
        f"{count(number, 'tensor')} by one each: {reason}" if reason else f"{number} by one each"
        for reason, number in reasons.most_common()
    ]
    return "; ".join(parts)


def cost_text(plan: TransferPlan, network: Network) -> str:
    """The predicted time and its parts."""
    cost = predict(plan, network)
    what = f"{network.bandwidth * 8 / 1e9:g} Gbit/s, {duration(network.latency)}"
    if not cost.busiest:
        return f"no communication ({what})"
    return (
        f"at least {duration(cost.seconds)} of communication per step ({what}): "
        f"{duration(cost.transfer_seconds)} at the port of {short_task(cost.busiest)}, "
        f"{duration(cost.latency_seconds)} in {count(cost.rounds, 'round')}"
    )


def report(plan: TransferPlan, network: Network | None = None, rows: int = 20) -> RenderableType:
    """The whole report, with the `rows` largest edges, for rich to print."""
    parts: list[RenderableType] = [
        f"[bold]{headline(plan)}[/bold]",
        escape(classes_text(plan)),
        escape(operations_text(plan)),
        f"{size(plan.arena_bytes)} of places; {count(plan.control_edges, 'control edge')} besides",
        escape(cost_text(plan, network or Network())),
        _tasks(plan),
        _links(plan),
        _edges(plan, rows),
    ]
    return Group(*parts, *_advice(plan))


def _table(title: str, left: tuple[str, ...], right: tuple[str, ...]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    for name in left:
        table.add_column(name, overflow="fold")
    for name in right:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _tasks(plan: TransferPlan) -> Table:
    table = _table("\nTasks", ("task",), ("sends", "receives", "share", "memory"))
    memory = plan.memory()
    for spot in hot_spots(plan):
        cells = size(spot.sent), size(spot.received), f"{spot.share:.0%}", size(memory[spot.task])
        table.add_row(short_task(spot.task), *cells)
    return table


def _links(plan: TransferPlan) -> Table:
    table = _table("\nLinks", ("from", "to"), ("bytes", "memory", "rings", "groups"))
    totals = plan.bytes_by_link()
    for link in plan.links:
        moved = totals.get((link.source, link.destination), 0)
        numbers = size(moved), size(link.bytes), str(link.rings), str(link.groups)
        table.add_row(short_task(link.source), short_task(link.destination), *numbers)
    return table


def _edges(plan: TransferPlan, rows: int) -> Table:
    chosen = sorted(plan.edges, key=lambda edge: (-edge.bytes, edge.key))[:rows]
    more = len(plan.edges) - len(chosen)
    title = "\nTensors" + (f" (the largest; {more:,} more)" if more else "")
    table = _table(title, ("tensor", "from", "to", "type", "shape", "class"), ("bytes",))
    for edge in chosen:
        table.add_row(*(escape(cell) for cell in edge_cells(edge)), size(edge.bytes))
    return table


def edge_cells(edge: Edge) -> tuple[str, ...]:
    """The cells of an edge: name, source, destination, type, shape, and class with its reason."""
    reason = f" ({edge.reason})" if edge.reason else ""
    loop = ", in a loop" if edge.in_loop else ""
    return (
        edge.variable or edge.name,
        short_task(edge.source),
        short_task(edge.destination),
        edge.dtype,
        shape_text(edge.shape),
        f"{edge.plan_class}{loop}{reason}",
    )


def _advice(plan: TransferPlan) -> Iterator[str]:
    found = advise(plan)
    if found:
        yield "\n[bold]Advice[/bold]"
    for advice in found:
        yield f"• {escape(advice.text)}"


def difference(found: Difference) -> RenderableType:
    """The differences that `diff` found."""
    if not found:
        return "no difference"
    table = _table("", ("", "tensor", "from", "to", "type", "shape", "class"), ("bytes",))
    for mark, edges in (("-", found.removed), ("+", found.added)):
        for edge in edges:
            table.add_row(mark, *map(escape, edge_cells(edge)), size(edge.bytes))
    for before, after in found.changed:
        table.add_row("before", *map(escape, edge_cells(before)), size(before.bytes))
        table.add_row("after", *map(escape, edge_cells(after)), size(after.bytes))
    return table
