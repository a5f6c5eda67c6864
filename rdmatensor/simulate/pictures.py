# SPDX-License-Identifier: Apache-2.0
"""Draw what was simulated: accuracy over time and over bytes, and the time to the target over workers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

from .study import Outcome

_COLOURS = ("#0b7285", "#e8590c", "#5f3dc4", "#2b8a3e", "#c2255c", "#1864ab", "#846358")
_STYLES = ("-", "--", "-.", ":")


def write(outcomes: Sequence[Outcome], folder: Path) -> list[Path]:
    """Write the pictures, and return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    sizes = sorted({each.workers for each in outcomes})
    made = {
        f"accuracy_{size}.svg": _accuracy([each for each in outcomes if each.workers == size])
        for size in sizes
    }
    if len(sizes) > 1:
        made["workers.svg"] = _workers(outcomes)
    for name, figure in made.items():
        with mpl.rc_context({"svg.hashsalt": "rdmatensor", "svg.fonttype": "none"}):
            figure.savefig(folder / name, bbox_inches="tight", metadata={"Date": None})
    return [folder / name for name in made]


def _accuracy(outcomes: Sequence[Outcome]) -> Figure:
    figure = Figure(figsize=(11, 3.8))
    left, right = figure.subplots(1, 2, sharey=True)
    ways = [each.synchronizer for each in outcomes]
    for each in outcomes:
        kind = {**_line(each.synchronizer, ways), "label": each.synchronizer, "lw": 1.2}
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
    _finish(left, right)
    return figure


def _workers(outcomes: Sequence[Outcome]) -> Figure:
    """Draw medians of all seeds, and lines from the fastest to the slowest."""
    figure = Figure(figsize=(7, 4))
    axes = figure.subplots()
    ways = list(dict.fromkeys(each.synchronizer for each in outcomes))
    for way in ways:
        mine = [each for each in outcomes if each.synchronizer == way]
        points = [(each.workers, each.middle(each.seconds), each) for each in mine]
        there = [(size, middle, each) for size, middle, each in points if middle is not None]
        kind = _line(way, ways)
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
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_major_formatter(lambda number, _: f"{number:g}")
        axes.yaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("workers")
    axes.set_ylabel("seconds (simulated)")
    axes.set_title(
        f"time to {outcomes[0].target:.0%}: medians, and lines from the fastest to the slowest seed",
        loc="left",
        fontsize=10,
    )
    _finish(axes)
    return figure


def _line(way: str, ways: Sequence[str]) -> dict[str, Any]:
    """Return how matplotlib draws the line of a way: where a colour repeats, dashes tell ways apart."""
    style, colour = divmod(ways.index(way), len(_COLOURS))
    return {"color": _COLOURS[colour], "linestyle": _STYLES[style % len(_STYLES)]}


def _finish(*all_axes: Axes) -> None:
    """Take away what a reader does not need, and name the lines beside the last axes."""
    for axes in all_axes:
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25, which="major")
    all_axes[-1].legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1.01, 1))
