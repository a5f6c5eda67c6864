# SPDX-License-Identifier: Apache-2.0
"""Draws what was simulated: accuracy over time and over bytes, and the time to the target over workers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from ..bench.plots import legend, line, logarithmic, svg, tidy
from .study import Outcome


def write(outcomes: Sequence[Outcome], folder: Path) -> list[Path]:
    """Writes the pictures, and returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    sizes = sorted({each.workers for each in outcomes})
    made = {
        f"accuracy_{size}.svg": _accuracy([each for each in outcomes if each.workers == size])
        for size in sizes
    }
    if len(sizes) > 1:
        made["workers.svg"] = _workers(outcomes)
    for name, text in made.items():
        (folder / name).write_text(text, encoding="utf-8")
    return [folder / name for name in made]


def _accuracy(outcomes: Sequence[Outcome]) -> str:
    figure = Figure(figsize=(11, 3.8))
    left, right = figure.subplots(1, 2, sharey=True)
    ways = [each.synchronizer for each in outcomes]
    for each in outcomes:
        kind = {**line(each.synchronizer, ways), "label": each.synchronizer, "lw": 1.2}
        left.plot(each.curve.seconds, each.curve.accuracy, **kind)
        right.plot([n / 1e9 for n in each.curve.nbytes], each.curve.accuracy, **kind)
    left.set_xlabel("seconds (simulated)")
    right.set_xlabel("GB that a host has sent (simulated)")
    right.set_xscale("symlog", linthresh=0.1)
    left.set_ylabel("accuracy")
    left.set_ylim(0.7, 1.0)
    left.set_title(f"{outcomes[0].workers} workers, first seed", loc="left", fontsize=10)
    target = outcomes[0].target
    for axes in (left, right):
        axes.axhline(target, color="#868e96", lw=0.8, ls=":", label=f"the target, {target:.0%}")
        tidy(axes)
    legend(right)
    return svg(figure)


def _workers(outcomes: Sequence[Outcome]) -> str:
    """Medians of all seeds, and lines from the fastest to the slowest."""
    figure = Figure(figsize=(7, 4))
    axes = figure.subplots()
    ways = list(dict.fromkeys(each.synchronizer for each in outcomes))
    for way in ways:
        mine = [each for each in outcomes if each.synchronizer == way]
        points = [(each.workers, each.middle(each.seconds), each) for each in mine]
        there = [(size, middle, each) for size, middle, each in points if middle is not None]
        kind = line(way, ways)
        label = way if there else f"{way} (not reached)"
        axes.plot(
            [x for x, *_ in there], [y for _, y, _ in there], marker="o", ms=3, label=label, **kind
        )
        for size, _, each in there:
            known = [value for value in each.seconds if value is not None]
            axes.plot([size, size], [min(known), max(known)], color=kind["color"], lw=1)
    sizes = sorted({each.workers for each in outcomes})
    axes.set_xscale("log", base=2)
    axes.set_xlim(sizes[0] / 1.2, sizes[-1] * 1.2)
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.minorticks_off()
    # A logarithmic axis without a value cannot be drawn.
    if any(seconds is not None for each in outcomes for seconds in each.seconds):
        logarithmic(axes, lambda number: f"{number:g}")
    axes.set_xlabel("workers")
    axes.set_ylabel("seconds (simulated)")
    axes.set_title(
        f"time to {outcomes[0].target:.0%}: medians, and lines from the fastest to the slowest seed",
        loc="left",
        fontsize=10,
    )
    legend(axes)
    tidy(axes)
    return svg(figure)
