# SPDX-License-Identifier: Apache-2.0
"""Advice that would improve a plan, with the edges that it concerns.

Advice about load is followed in the plan, and given only if the step is predicted to take less time then.
Nothing is said about less than 64 KB per step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from rdmatensor.plan import Reason
from rdmatensor.units import count, duration, short_task, size

from ..model.following import dealt_by_bytes, moved, rows_at_source, split
from ..model.plan import Edge, TransferPlan
from .cost import Network, predict

# Give advice only if the communication of a step takes at most so large a part of the time afterwards.
_WORTH = 0.95
# Say nothing about fewer bytes per step.
_LEAST = 64 * 1024
# Try to move so many variables of a task, the largest first.
_TRIED = 20


@dataclass(frozen=True)
class Advice:
    """One piece of advice. It concerns `edges`, and at least `bytes` bytes per step."""

    kind: str
    """batch | shape | budget | type | rows | move | split | spread | loop | slots."""
    text: str
    bytes: int
    edges: tuple[str, ...]
    seconds: tuple[float, float] | None = None
    """What communication takes in a step before and after, if the advice is to change that."""


@dataclass(frozen=True)
class HotSpot:
    """The traffic of a task. `share` is its part of all bytes that ports send and receive."""

    task: str
    sent: int
    received: int
    share: float


def hot_spots(plan: TransferPlan) -> list[HotSpot]:
    """Return the tasks by their share of the traffic, the largest first."""
    total = 2 * plan.step_bytes or 1
    spots = [
        HotSpot(task, sent, received, (sent + received) / total)
        for task, (sent, received) in plan.traffic().items()
    ]
    return sorted(spots, key=lambda spot: (-spot.share, spot.task))


def advise(plan: TransferPlan, network: Network | None = None) -> list[Advice]:
    """Return all advice, beginning with the most bytes. `network` decides what takes less time."""
    found = [
        *_unknown_shapes(plan),
        *_without_place(plan),
        *_without_bytes(plan),
        *_whole_tables(plan, network),
        *_uneven_jobs(plan, network),
        *_loops(plan),
        *_places_in_loops(plan),
    ]
    return sorted(found, key=lambda advice: (-advice.bytes, advice.kind, advice.text))


def _advice(
    kind: str, text: str, edges: Iterable[Edge], seconds: tuple[float, float] | None = None
) -> Advice:
    concerned = list(edges)
    names = tuple(edge.name for edge in concerned)
    if seconds:
        text += f" ({duration(seconds[0])} -> {duration(seconds[1])} of communication per step)"
    return Advice(kind, text, sum(edge.step_bytes for edge in concerned), names, seconds)


def _matters(edges: Iterable[Edge]) -> bool:
    """Return whether edges have enough bytes, or an unknown number, to say something about them."""
    concerned = list(edges)
    known = all(edge.bytes for edge in concerned)
    return not known or sum(edge.step_bytes for edge in concerned) >= _LEAST


def _by(edges: Iterable[Edge], key: Callable[[Edge], str]) -> dict[str, list[Edge]]:
    groups: dict[str, list[Edge]] = {}
    for edge in edges:
        groups.setdefault(key(edge), []).append(edge)
    return groups


def _unknown_shapes(plan: TransferPlan) -> Iterator[Advice]:
    unknown = (edge for edge in plan.edges if edge.plan_class in ("dynamic", "bounded"))
    groups = _by((edge for edge in unknown if " unknown: " in edge.reason), lambda e: e.reason)
    for reason, edges in groups.items():
        if not _matters(edges):
            continue
        what, _, origin = reason.partition(" unknown: ")
        batch = what == "dim 0" and origin.startswith("placeholder ")
        remedy = (
            "give it a fixed batch size"
            if batch
            else "give what it depends on a fixed shape, or state the shape (tf.ensure_shape)"
        )
        yield _advice(
            "batch" if batch else "shape",
            f"{count(len(edges), 'tensor')} cannot be static because {what} of {origin} is unknown: "
            f"{remedy}",
            edges,
        )


def _without_place(plan: TransferPlan) -> Iterator[Advice]:
    dropped = [edge for edge in plan.edges if edge.reason == str(Reason.BUDGET)]
    for task, edges in _by(dropped, lambda edge: edge.destination).items():
        slots = plan.options.slots
        needed = sum(edge.bytes * slots for edge in edges)
        yield _advice(
            "budget",
            f"{count(len(edges), 'tensor')} found no place at {short_task(task)}: raise "
            f"RDMATENSOR_PLAN_LIMIT there by about {size(needed)}",
            edges,
        )


def _without_bytes(plan: TransferPlan) -> Iterator[Advice]:
    opaque = [edge for edge in plan.edges if edge.reason == str(Reason.TYPE)]
    for dtype, edges in _by(opaque, lambda edge: edge.dtype).items():
        said = f"{count(len(edges), 'tensor')} of type {dtype} go by RPC, such as {edges[0].name}: "
        # Of functions that are inlined, only the values of variables travel.
        remedy = (
            "TensorFlow refuses to run what XLA compiles (jit_compile, a grouped convolution of Keras) with "
            "a variable of another task, so read the variable outside of it"
            if dtype == "resource"
            else "produce and use them in one task"
        )
        yield _advice("type", said + remedy, edges)


def _gain(
    before: TransferPlan, after: TransferPlan, network: Network | None
) -> tuple[float, float] | None:
    """Return the times of both if the second is worth what one has to do for it."""
    if _load(before) - _load(after) < _LEAST:
        return None
    seconds = predict(before, network).seconds, predict(after, network).seconds
    return seconds if seconds[1] <= _WORTH * seconds[0] else None


def _load(plan: TransferPlan) -> int:
    return max((max(sides) for sides in plan.traffic().values()), default=0)


def _whole_tables(plan: TransferPlan, network: Network | None) -> Iterator[Advice]:
    tables = _by((e for e in plan.edges if e.variable and e.rows is not None), lambda e: e.variable)
    for variable, edges in tables.items():
        kept = [e for e in plan.edges if e.variable == variable and e not in edges]
        seconds = _gain(plan, rows_at_source(plan, variable), network)
        if kept or seconds is None:
            continue
        rows = sum((edge.rows or 0) * edge.sends for edge in edges)
        whole = sum(edge.step_bytes for edge in edges)
        yield _advice(
            "rows",
            f"{variable} travels whole ({size(whole)} per step), and its receivers take rows of it "
            f"({size(rows)}): look rows up at the server, with tf.nn.embedding_lookup(variable, ids) under "
            "tf.device(variable.device)",
            edges,
            seconds,
        )


def _uneven_jobs(plan: TransferPlan, network: Network | None) -> Iterator[Advice]:
    loads = {task: max(sides) for task, sides in plan.traffic().items()}
    busiest = max(loads, key=lambda task: loads[task], default="")
    held = {v.name: v for v in plan.held if v.task == busiest}
    weights: dict[str, int] = {}
    for edge in plan.edges:
        if edge.source == busiest and edge.variable in held:
            weights[edge.variable] = weights.get(edge.variable, 0) + edge.step_bytes
    if not weights:
        return
    job = [task for task in plan.tasks if task.split("/")[1] == busiest.split("/")[1]]
    concerned = [edge for edge in plan.edges if busiest in (edge.source, edge.destination)]
    burden = f"{short_task(busiest)} carries {size(loads[busiest])} per step"
    if len(job) == 1:
        job.append(f"{busiest.rpartition(':')[0]}:{int(busiest.rpartition(':')[2]) + 1}")
        spread = _gain(plan, dealt_by_bytes(plan, job), network)
        if spread:
            text = f"{burden}: spread its variables over two tasks, by bytes (--spread bytes)"
            yield _advice("spread", text, concerned, spread)
            return
    else:
        spread = _gain(plan, dealt_by_bytes(plan, job), network)
        if spread:
            text = (
                f"{burden}: deal variables out by bytes (--spread bytes, PlacedOn(spread='bytes'))"
            )
            yield _advice("spread", text, concerned, spread)
        found = []
        coolest = min(job, key=lambda task: loads[task])
        for name in sorted(weights, key=lambda name: (-weights[name], name))[:_TRIED]:
            seconds = _gain(plan, moved(plan, {name: coolest}), network)
            if seconds:
                found.append((seconds[1], name, seconds))
        if found:
            _, name, seconds = min(found)
            if not spread or seconds[1] <= _WORTH * spread[1]:
                text = (
                    f"{burden}: move {name} ({size(weights[name])} of it) to {short_task(coolest)}"
                )
                yield _advice("move", text, _of(plan, name), seconds)
                return
        if spread:
            return
    largest = max(weights, key=lambda name: (weights[name], name))
    seconds = _gain(plan, split(plan, largest, job), network)
    if seconds:
        text = f"{burden}: split {largest}, which is {size(weights[largest])} of it, over {len(job)} tasks"
        yield _advice("split", text, _of(plan, largest), seconds)


def _of(plan: TransferPlan, variable: str) -> list[Edge]:
    return [edge for edge in plan.edges if edge.variable == variable]


def _loops(plan: TransferPlan) -> Iterator[Advice]:
    inside = [e for e in plan.edges if e.in_loop and e.variable and (e.iterations or 2) > 1]
    if inside and _matters(inside):
        largest = max(inside, key=lambda edge: (edge.step_bytes, edge.name))
        once = sum(edge.bytes for edge in inside)
        text = (
            f"{count(len(inside), 'tensor')} of variables travel in every iteration of a loop, such as "
            f"{largest.variable}: read them before the loop ({size(once)} instead of "
            f"{size(sum(edge.step_bytes for edge in inside))})"
        )
        yield _advice("loop", text, inside)


def _places_in_loops(plan: TransferPlan) -> Iterator[Advice]:
    late = [edge for edge in plan.edges if 0 < edge.placed_sends < edge.sends]
    if not late:
        return
    slots = min(max(edge.sends for edge in late), 64)
    before = sum(edge.bytes * (edge.sends - edge.placed_sends) for edge in late)
    after = sum(edge.bytes * max(edge.sends - slots, 0) for edge in late)
    if before - after >= _LEAST:
        needed = sum(edge.bytes * (slots - edge.slots) for edge in late)
        text = (
            f"{size(before)} of {count(len(late), 'tensor')} in loops may find no place: set "
            f"RDMATENSOR_PLAN_SLOTS={(slots + 1) // 2}, which takes {size(needed)} more in loops"
        )
        yield _advice("slots", text, late)
