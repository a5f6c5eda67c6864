# SPDX-License-Identifier: Apache-2.0
"""Draw the variables of a plan as a treemap: a rectangle's area is the bytes, its colour the task."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rdmatensor.units import short_task, size

from ..model.plan import TransferPlan, Variable

WIDTH, HEIGHT = 900.0, 300.0
# More rectangles are too small to be seen.
MOST_TILES = 400
# A label needs so much room.
_WIDE, _TALL, _LETTER = 60.0, 16.0, 6.6


@dataclass(frozen=True)
class Tile:
    """A variable. `number` is that of its task; `label` is "" if there is no room."""

    x: float
    y: float
    width: float
    height: float
    number: int
    label: str
    title: str


@dataclass(frozen=True)
class Treemap:
    """The picture, with the names and loads of the tasks in the order of their numbers."""

    tiles: tuple[Tile, ...]
    tasks: tuple[str, ...]
    left_out: int


def treemap(plan: TransferPlan) -> Treemap:
    """Draw the tasks side by side, and in each its variables, the largest first."""
    held: dict[str, list[Variable]] = {}
    for variable in sorted(plan.held, key=lambda each: (-each.bytes, each.name))[:MOST_TILES]:
        if variable.bytes:
            held.setdefault(variable.task, []).append(variable)
    tasks = sorted(held)
    totals = {task: sum(each.bytes for each in held[task]) for task in tasks}
    whole = sum(totals.values()) or 1
    tiles, left = [], 0.0
    for number, task in enumerate(tasks):
        width = WIDTH * totals[task] / whole
        areas = [each.bytes / totals[task] * width * HEIGHT for each in held[task]]
        for variable, box in zip(held[task], _squares(areas, left, 0, width, HEIGHT), strict=True):
            tiles.append(_tile(variable, number, *box))
        left += width
    names = tuple(f"{short_task(task)}: {size(totals[task])}" for task in tasks)
    return Treemap(tuple(tiles), names, len(plan.held) - len(tiles))


def _tile(variable: Variable, number: int, x: float, y: float, width: float, height: float) -> Tile:
    words = f"{variable.name} {size(variable.bytes)}"
    room = int((width - 8) / _LETTER)
    label = ""
    if width >= _WIDE and height >= _TALL:
        label = words if len(words) <= room else f"{words[: room - 1]}…"
    title = f"{variable.name}: {size(variable.bytes)} at {short_task(variable.task)}"
    return Tile(x, y, width, height, number, label, title)


Box = tuple[float, float, float, float]


def _squares(
    areas: Sequence[float], x: float, y: float, width: float, height: float
) -> Iterator[Box]:
    """Fill a rectangle with rectangles of these areas, which fall, each as square as possible."""
    rest = list(areas)
    while rest:
        side = min(width, height)
        row = [rest.pop(0)]
        while rest and _worst([*row, rest[0]], side) <= _worst(row, side):
            row.append(rest.pop(0))
        thick = sum(row) / side if side else 0.0
        at = 0.0
        for area in row:
            long = area / thick if thick else 0.0
            yield (x, y + at, thick, long) if width >= height else (x + at, y, long, thick)
            at += long
        if width >= height:
            x, width = x + thick, max(width - thick, 0.0)
        else:
            y, height = y + thick, max(height - thick, 0.0)


def _worst(row: Sequence[float], side: float) -> float:
    """Return the greatest ratio of the sides of rectangles in a row along `side`."""
    thick = sum(row) / side if side else 0.0
    if not thick:
        return float("inf")
    return max(
        max(thick * thick / area, area / (thick * thick)) if area else float("inf") for area in row
    )
