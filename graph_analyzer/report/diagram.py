# SPDX-License-Identifier: Apache-2.0
"""Draw the tasks of a plan and the links between them: a line's width is the bytes that travel on it."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

from rdmatensor.units import short_task, size

from ..model.plan import PATHS, TransferPlan, by_path

WIDTH = 900.0
_BOX, _TALL, _GAP = 150.0, 44.0, 22.0
_THINNEST, _WIDEST = 1.0, 16.0
# More lines cannot be told apart.
MOST_LINES = 80


@dataclass(frozen=True)
class Line:
    """A link, as a curve. `kind` is the path of most of its bytes."""

    curve: str
    width: float
    kind: str
    title: str


@dataclass(frozen=True)
class Task:
    """A task, as a box, with what it sends and receives."""

    x: float
    y: float
    name: str
    traffic: str


@dataclass(frozen=True)
class Diagram:
    """The picture. `left_out` is the number of links that are not drawn."""

    height: float
    box: tuple[float, float]
    tasks: tuple[Task, ...]
    lines: tuple[Line, ...]
    left_out: int


def diagram(plan: TransferPlan) -> Diagram:
    """Draw the jobs as columns, parameter servers on the left."""
    jobs: dict[str, list[str]] = {}
    for task in plan.tasks:
        jobs.setdefault(task.split("/")[1], []).append(task)
    columns = sorted(
        jobs.values(), key=lambda tasks: (tasks[0].split("/")[1] == "job:worker", tasks)
    )
    tallest = max((len(tasks) for tasks in columns), default=0)
    height = tallest * (_TALL + _GAP) + _GAP
    apart = (WIDTH - _BOX) / max(len(columns) - 1, 1)
    places = {
        task: (column * apart, height * (row + 0.5) / len(tasks) - _TALL / 2)
        for column, tasks in enumerate(columns)
        for row, task in enumerate(tasks)
    }
    totals = sorted(plan.bytes_by_link().items(), key=lambda item: (-item[1], item[0]))
    most = max((count for _, count in totals), default=0) or 1
    lines = [
        _line(plan, source, destination, count, most, places)
        for (source, destination), count in totals[:MOST_LINES]
    ]
    traffic = plan.traffic()
    tasks = [
        Task(
            x, y, short_task(task), f"sends {size(traffic[task][0])}, gets {size(traffic[task][1])}"
        )
        for task, (x, y) in places.items()
    ]
    return Diagram(
        height, (_BOX, _TALL), tuple(tasks), tuple(lines), max(len(totals) - MOST_LINES, 0)
    )


def _line(
    plan: TransferPlan,
    source: str,
    destination: str,
    count: int,
    most: int,
    places: dict[str, tuple[float, float]],
) -> Line:
    (x1, y1), (x2, y2) = places[source], places[destination]
    paths = by_path(each for each in plan.edges if each.key[:2] == (source, destination))
    # Links there leave above the middle of a box, links back below it.
    forth = (x1, source) < (x2, destination)
    y1, y2 = (y + _TALL * (0.36 if forth else 0.64) for y in (y1, y2))
    if x1 == x2:
        side = x1 + _BOX if x1 < WIDTH / 2 else x1
        bend = side + (60 if x1 < WIDTH / 2 else -60)
        curve = f"M{side:.1f},{y1:.1f} C{bend:.1f},{y1:.1f} {bend:.1f},{y2:.1f} {side:.1f},{y2:.1f}"
    else:
        x1, x2 = (x1 + _BOX, x2) if x1 < x2 else (x1, x2 + _BOX)
        middle = (x1 + x2) / 2
        curve = f"M{x1:.1f},{y1:.1f} C{middle:.1f},{y1:.1f} {middle:.1f},{y2:.1f} {x2:.1f},{y2:.1f}"
    width = max(_THINNEST, _WIDEST * sqrt(count / most))
    kind = max(PATHS, key=lambda path: paths[path]) if count else "dynamic"
    ends = f"{short_task(source)} to {short_task(destination)}"
    return Line(curve, width, kind, f"{ends}: {size(count)} per step, most of it {kind}")
