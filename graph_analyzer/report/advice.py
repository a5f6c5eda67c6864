# SPDX-License-Identifier: Apache-2.0
"""Advice that would improve a plan, with the edges that it concerns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from rdmatensor.plan import Reason
from rdmatensor.units import count, short_task, size

from ..model.plan import Edge, TransferPlan

# Report a task whose load is so many times the mean of its job.
_UNEVEN = 1.25
# Suggest a move only if it removes at least this share of the difference between two tasks.
_WORTH_MOVING = 0.2
# Report a task that so large a share of all bytes passes through.
_BOTTLENECK = 0.45


@dataclass(frozen=True)
class Advice:
    """One piece of advice. It concerns `edges`, and at least `bytes` bytes per step."""

    kind: str
    """batch | shape | budget | type | split | move | spread | loop."""
    text: str
    bytes: int
    edges: tuple[str, ...]


@dataclass(frozen=True)
class HotSpot:
    """The traffic of a task. `share` is its part of all bytes that ports send and receive."""

    task: str
    sent: int
    received: int
    share: float


def hot_spots(plan: TransferPlan) -> list[HotSpot]:
    """The tasks by their share of the traffic, the largest first."""
    total = 2 * plan.step_bytes or 1
    spots = [
        HotSpot(task, sent, received, (sent + received) / total)
        for task, (sent, received) in plan.traffic().items()
    ]
    return sorted(spots, key=lambda spot: (-spot.share, spot.task))


def advise(plan: TransferPlan) -> list[Advice]:
    """All advice, beginning with the most bytes."""
    found = [
        *_unknown_shapes(plan),
        *_without_place(plan),
        *_without_bytes(plan),
        *_uneven_jobs(plan),
        *_bottlenecks(plan),
        *_loops(plan),
    ]
    return sorted(found, key=lambda advice: (-advice.bytes, advice.kind, advice.text))


def _advice(kind: str, text: str, edges: Iterable[Edge]) -> Advice:
    concerned = list(edges)
    names = tuple(edge.name for edge in concerned)
    return Advice(kind, text, sum(edge.bytes for edge in concerned), names)


def _by(edges: Iterable[Edge], key: Callable[[Edge], str]) -> dict[str, list[Edge]]:
    groups: dict[str, list[Edge]] = {}
    for edge in edges:
        groups.setdefault(key(edge), []).append(edge)
    return groups


def _unknown_shapes(plan: TransferPlan) -> Iterator[Advice]:
    unknown = (edge for edge in plan.edges if edge.plan_class in ("dynamic", "bounded"))
    groups = _by((edge for edge in unknown if " unknown: " in edge.reason), lambda e: e.reason)
    for reason, edges in groups.items():
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
        yield _advice(
            "type",
            f"{count(len(edges), 'tensor')} of type {dtype} go by RPC, such as {edges[0].name}: "
            "produce and use them in one task",
            edges,
        )


def _uneven_jobs(plan: TransferPlan) -> Iterator[Advice]:
    loads = {task: max(sides) for task, sides in plan.traffic().items()}
    for tasks in _by_job(plan.tasks).values():
        mean = sum(loads[task] for task in tasks) / len(tasks)
        hottest = max(tasks, key=lambda task: loads[task])
        if len(tasks) < 2 or loads[hottest] <= _UNEVEN * mean:
            continue
        coolest = min(tasks, key=lambda task: loads[task])
        held = _by(
            (edge for edge in plan.edges if edge.source == hottest),
            lambda edge: edge.variable or edge.name.partition("@")[0],
        )
        if not held:
            continue
        weights = {name: sum(edge.bytes for edge in edges) for name, edges in held.items()}
        burden = f"{short_task(hottest)} carries {loads[hottest] / mean:.1f} times its job's mean"
        gap = loads[hottest] - loads[coolest]
        largest = max(weights, key=lambda name: (weights[name], name))
        # The variable whose move balances the two tasks best.
        best = min(weights, key=lambda name: (abs(weights[name] - gap / 2), name))
        if _WORTH_MOVING * gap <= weights[best] < gap:
            text = f"{burden}: move {best} ({size(weights[best])} of it) to {short_task(coolest)}"
            yield _advice("move", text, held[best])
        else:
            text = f"{burden}: split {largest}, which is {size(weights[largest])} of it"
            yield _advice("split", text, held[largest])


def _by_job(tasks: Iterable[str]) -> dict[str, list[str]]:
    jobs: dict[str, list[str]] = {}
    for task in tasks:
        jobs.setdefault(task.split("/")[1], []).append(task)
    return jobs


def _bottlenecks(plan: TransferPlan) -> Iterator[Advice]:
    for spot in hot_spots(plan):
        alone = len(_by_job(plan.tasks)[spot.task.split("/")[1]]) == 1
        if alone and len(plan.tasks) > 2 and spot.share > _BOTTLENECK:
            edges = [e for e in plan.edges if spot.task in (e.source, e.destination)]
            text = (
                f"{short_task(spot.task)} sends or receives {2 * min(spot.share, 0.5):.0%} of all bytes: "
                "spread what it holds over several tasks"
            )
            yield _advice("spread", text, edges)


def _loops(plan: TransferPlan) -> Iterator[Advice]:
    inside = [edge for edge in plan.edges if edge.in_loop]
    if inside:
        largest = max(inside, key=lambda edge: (edge.bytes, edge.name))
        text = (
            f"{count(len(inside), 'tensor')} travel in every iteration of a loop, such as "
            f"{largest.name}: read what the loop does not change, like a variable, before the loop"
        )
        yield _advice("loop", text, inside)
