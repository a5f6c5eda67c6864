# SPDX-License-Identifier: Apache-2.0
"""Draw when the ports of tasks are busy, if each round of transfers begins when the one before is over.

A round takes its latency, and as long as the fullest port of the round needs. Computation counts as nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from rdmatensor.units import duration, short_task, size

from ..model.plan import PATHS, Edge, TransferPlan, by_path
from .cost import Network, latency

WIDTH, ROW = 900.0, 30.0
_THINNEST = 0.6


@dataclass(frozen=True)
class Bar:
    """What a port does in a round. `kind` is the path of most of its bytes; `sends`, or receives."""

    x: float
    y: float
    width: float
    kind: str
    sends: bool
    title: str


@dataclass(frozen=True)
class Mark:
    """A time on the axis."""

    x: float
    text: str


@dataclass(frozen=True)
class Schedule:
    """The picture: a row for each task, in which the upper half is sending."""

    height: float
    tasks: tuple[str, ...]
    bars: tuple[Bar, ...]
    marks: tuple[Mark, ...]
    seconds: str


def schedule(plan: TransferPlan, network: Network) -> Schedule:
    """Draw the rounds one after another."""
    rounds: dict[int, list[Edge]] = {}
    for edge in plan.edges:
        rounds.setdefault(edge.first, []).append(edge)
    spans, now = [], 0.0
    for number in sorted(rounds):
        ports: dict[tuple[str, bool], list[Edge]] = {}
        for edge in rounds[number]:
            ports.setdefault((edge.source, True), []).append(edge)
            ports.setdefault((edge.destination, False), []).append(edge)
        waits = max(latency(edge, network) for edge in rounds[number])
        busy = {port: sum(e.step_bytes for e in edges) for port, edges in ports.items()}
        for port, edges in ports.items():
            spans.append((now + waits, busy[port] / network.bandwidth, port, edges, number))
        now += waits + max(busy.values()) / network.bandwidth
    scale = WIDTH / now if now else 0.0
    rows = {task: ROW * row for row, task in enumerate(plan.tasks)}
    bars = []
    for start, length, (task, sends), edges, number in spans:
        paths = by_path(edges)
        what = f"{short_task(task)} {'sends' if sends else 'receives'}"
        title = (
            f"round {number}: {what} {size(sum(paths.values()))} in {len(edges)} tensors, "
            f"{duration(length)} from {duration(start)}"
        )
        y = rows[task] + (2 if sends else ROW / 2)
        kind = max(PATHS, key=lambda path: paths[path])
        bars.append(Bar(start * scale, y, max(length * scale, _THINNEST), kind, sends, title))
    marks = tuple(Mark(WIDTH * part / 4, duration(now * part / 4)) for part in range(5))
    names = tuple(short_task(task) for task in plan.tasks)
    return Schedule(ROW * len(names), names, tuple(bars), marks, duration(now))
