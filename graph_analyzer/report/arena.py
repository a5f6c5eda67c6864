# SPDX-License-Identifier: Apache-2.0
"""Draw where tensors lie at each receiver over the rounds of a step, as rectangles.

The horizontal axis shows rounds of transfers: a tensor lies there from the round in which it arrives to the
round after which all its consumers have run. The vertical axis shows bytes of the receiver's memory, link by
link. A tensor's first place is a rectangle of its own. The other places of its ring, which later steps use,
are one pale rectangle per ring.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from rdmatensor.units import short_task, size

from ..model.plan import Edge, TransferPlan

WIDTH, HEIGHT = 900.0, 260.0
# With more boxes a page is slow, and the rest are too small to see.
MOST_BOXES = 2000
_THINNEST = 0.75


@dataclass(frozen=True)
class Box:
    """A rectangle. `kind` is a plan class, or "spare" for further places. `open` if its end is unknown."""

    x: float
    y: float
    width: float
    height: float
    kind: str
    open: bool
    title: str


@dataclass(frozen=True)
class Tick:
    """The label of a round or of a link, and its position on that axis."""

    at: float
    text: str


@dataclass(frozen=True)
class Arena:
    """The memory of a receiver, or of several that receive alike.

    `left_out` is the number of tensors that are too small to be drawn.
    """

    tasks: tuple[str, ...]
    bytes: int
    boxes: tuple[Box, ...]
    rounds: tuple[Tick, ...]
    links: tuple[Tick, ...]
    left_out: int


def arenas(plan: TransferPlan) -> list[Arena]:
    """Return the arenas of the tasks that receive into places, in the order of tasks."""
    placed = [edge for edge in plan.edges if edge.offset is not None]
    last_round = 1 + max((edge.first for edge in placed), default=0)
    found: list[Arena] = []
    memory = plan.memory()
    for task in plan.tasks:
        here = [edge for edge in placed if edge.destination == task]
        if here and memory[task]:
            one = _arena(plan, task, memory[task], here, last_round)
            like = next((n for n, other in enumerate(found) if _alike(one, other)), None)
            if like is None:
                found.append(one)
            else:
                found[like] = replace(found[like], tasks=(*found[like].tasks, task))
    return found


def _alike(one: Arena, other: Arena) -> bool:
    """Return whether two receivers have the same places, whatever is in them."""
    if (one.bytes, one.links, one.left_out) != (other.bytes, other.links, other.left_out):
        return False
    return [replace(box, title="") for box in one.boxes] == [
        replace(box, title="") for box in other.boxes
    ]


def _arena(plan: TransferPlan, task: str, total: int, edges: list[Edge], last_round: int) -> Arena:
    base, start, labels = {}, 0, []
    for link in plan.links:
        if link.destination == task:
            base[link.source] = start
            labels.append(
                Tick(_y(start, total), f"from {short_task(link.source)}, {size(link.bytes)}")
            )
            start += link.bytes
    drawn = sorted(edges, key=lambda edge: (-edge.bytes, edge.key))[:MOST_BOXES]
    starts: dict[tuple[str, int | None], int] = {}
    for edge in edges:
        key, offset = (edge.source, edge.ring), edge.offset or 0
        starts[key] = min(offset, starts.get(key, offset))
    boxes: dict[tuple[str, int | None], Box] = {}
    for edge in drawn:
        key = edge.source, edge.ring
        if key not in boxes and edge.slots > 1:
            boxes[key] = _spare(edge, starts[key], base[edge.source], total)
    tensors = [_box(edge, base[edge.source], total, last_round) for edge in drawn]
    rounds = tuple(
        Tick(WIDTH * number / last_round, str(number))
        for number in range(0, last_round, -(-last_round // 20))
    )
    return Arena(
        (task,), total, (*boxes.values(), *tensors), rounds, tuple(labels), len(edges) - len(drawn)
    )


def _y(offset: int, total: int) -> float:
    return HEIGHT * offset / total


def _box(edge: Edge, base: int, total: int, last_round: int) -> Box:
    end = last_round if edge.last is None else min(edge.last + 1, last_round)
    left, right = (WIDTH * number / last_round for number in (edge.first, end))
    group = f", group {edge.group}" if edge.group is not None else ""
    return Box(
        x=left,
        y=_y(base + (edge.offset or 0), total),
        width=max(right - left, 1.0),
        height=max(_y(edge.bytes, total), _THINNEST),
        kind=edge.plan_class,
        open=edge.last is None,
        title=f"{edge.variable or edge.name}: {size(edge.bytes)} from {short_task(edge.source)}, "
        f"ring {edge.ring}{group}, offset {edge.offset:,}",
    )


def _spare(edge: Edge, start: int, base: int, total: int) -> Box:
    """Return the box of the ring's places after its first one. The ring begins at `start`."""
    stride = edge.stride or 0
    return Box(
        x=0.0,
        y=_y(base + start + stride, total),
        width=WIDTH,
        height=_y(stride * (edge.slots - 1), total),
        kind="spare",
        open=False,
        title=f"ring {edge.ring} from {short_task(edge.source)}: {edge.slots} places of {size(stride)}",
    )
