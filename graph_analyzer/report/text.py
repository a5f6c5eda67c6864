# SPDX-License-Identifier: Apache-2.0
"""Render a plan as tables for a terminal."""

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
    """Return a shape in words: "64 x ?", "scalar" or "unknown rank"."""
    if shape is None:
        return "unknown rank"
    return " x ".join("?" if dim is None else str(dim) for dim in shape) or "scalar"


def headline(plan: TransferPlan) -> str:
    """Return the plan in one sentence."""
    if not plan.edges:
        where = ""
        if len(plan.tasks) == 1:
            where = f": everything runs on {short_task(plan.tasks[0])}, as no other task is named (tf.device)"
        return f"nothing travels between tasks{where}"
    if not plan.step_bytes:
        return f"{count(len(plan.edges), 'tensor')} per step, {plan.unknown} of unknown size"
    known = f"{size(plan.step_bytes)} per step in {count(len(plan.edges), 'tensor')}"
    unknown = f", {plan.unknown} of unknown size" if plan.unknown else ""
    share = f"{static_text(plan)} of the {'known ' * bool(plan.unknown)}bytes static"
    return f"{known}{unknown}; {share}"


def static_text(plan: TransferPlan) -> str:
    """Return the share of the bytes that is static: "100.0%", "at least 24.0%", or "-" if none is known."""
    if not plan.step_bytes:
        return "-"
    least = "at least " * any(_overflows(edge) for edge in plan.edges)
    return f"{least}{plan.static_share:.1%}"


def _overflows(edge: Edge) -> bool:
    """Return whether a loop may send it more often than there are places."""
    return 0 < edge.placed_sends < edge.sends


def classes_text(plan: TransferPlan) -> str:
    """Return the tensors and the bytes of each class in the plan."""
    totals = plan.bytes_by_class()
    parts = []
    for name in CLASSES:
        tensors = sum(edge.plan_class == name for edge in plan.edges)
        if tensors:
            parts.append(f"{name} {count(tensors, 'tensor')}, {size(totals[name])}")
    return "; ".join(parts) or "nothing travels"


def loops_text(plan: TransferPlan) -> str:
    """Return what has to be known about tensors in loops; "" if there are none of that kind."""
    parts = []
    ahead = [edge for edge in plan.edges if _overflows(edge)]
    if ahead:
        paths = plan.bytes_by_path()
        late = sum(sum(e.paths().values()) - e.paths().get(e.plan_class, 0) for e in ahead)
        parts.append(
            f"{count(len(ahead), 'tensor')} in loops run ahead of their receiver, which has "
            f"{max(edge.slots for edge in ahead)} places for each: up to {size(late)} find none, and go "
            + " or ".join(name for name in ("inline", "dynamic") if paths[name])
        )
    if plan.uncounted and plan.graphs == ("",):
        parts.append(
            f"{count(plan.uncounted, 'tensor')} in loops count once, because the graph does not tell how "
            "often they run: give --iterations"
        )
    return "; ".join(parts)


def operations_text(plan: TransferPlan) -> str:
    """Return how many tensors share the operations that send and receive them, and why others do not."""
    tensors, operations = plan.operations()
    parts = [f"{count(tensors, 'tensor')} sent by {count(operations, 'operation')}"] * bool(tensors)
    reasons = Counter(edge.alone for edge in plan.edges if edge.operation is None)
    parts += [
        f"{count(number, 'tensor')} by one each: {reason}" if reason else f"{number} by one each"
        for reason, number in reasons.most_common()
    ]
    return "; ".join(parts)


def cost_text(plan: TransferPlan, network: Network) -> str:
    """Return the predicted time and its parts."""
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
    """Render the whole report, with the `rows` largest edges, for rich to print."""
    parts: list[RenderableType] = [
        f"[bold]{headline(plan)}[/bold]",
        escape(classes_text(plan)),
        *([escape(loops_text(plan))] * bool(loops_text(plan))),
        escape(operations_text(plan)),
        f"{size(plan.arena_bytes)} of places; {count(plan.control_edges, 'control edge')} besides",
        escape(cost_text(plan, network or Network())),
        _tasks(plan),
        _links(plan),
        _edges(plan, rows),
    ]
    return Group(*parts, *_advice(plan, network))


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
    chosen = sorted(plan.edges, key=lambda edge: (-edge.step_bytes, edge.key))[:rows]
    more = len(plan.edges) - len(chosen)
    title = "\nTensors" + (f" (the largest; {more:,} more)" if more else "")
    table = _table(title, ("tensor", "from", "to", "type", "shape", "class"), ("bytes",))
    for edge in chosen:
        table.add_row(*(escape(cell) for cell in edge_cells(edge)), size(edge.step_bytes))
    return table


def edge_cells(edge: Edge) -> tuple[str, ...]:
    """Return the cells of an edge: name, source, destination, type, shape, and class with its reason."""
    reason = f" ({edge.reason})" if edge.reason else ""
    loop = f", {loop_text(edge)}" if edge.in_loop else ""
    return (
        edge.variable or edge.name,
        short_task(edge.source),
        short_task(edge.destination),
        edge.dtype,
        shape_text(edge.shape),
        f"{edge.plan_class}{loop}{reason}",
    )


def loop_text(edge: Edge) -> str:
    """Return how often an edge of a loop is sent: "20 times in a loop, 4 places"."""
    often = "in a loop" if edge.iterations is None else f"{edge.iterations} times in a loop"
    return f"{often}, {edge.slots} places" if _overflows(edge) else often


def _advice(plan: TransferPlan, network: Network | None) -> Iterator[str]:
    found = advise(plan, network)
    if found:
        yield "\n[bold]Advice[/bold]"
    for advice in found:
        yield f"• {escape(advice.text)}"


def difference(found: Difference) -> RenderableType:
    """Render the differences that `diff` found."""
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
