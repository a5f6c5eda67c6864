# SPDX-License-Identifier: Apache-2.0
"""Draws results as SVG."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import LogLocator, NullLocator

from .record import BYTES_PER_SECOND, LOSS, PER_SECOND, SECONDS, Result
from .report import by_key, named_size, turn_ratios, value, ways_of

# Ways of this project share a family of colours.
_COLOURS = {
    "rdmatensor": "#0b7285",
    "rdmatensor, registered": "#0b7285",
    "rdmatensor, any array": "#66c2cd",
    "static": "#0b7285",
    "grpc+rdma": "#0b7285",
    "RDMA.zerocp": "#0b7285",
    "dynamic": "#66c2cd",
    "RDMA.cp": "#66c2cd",
    "memcpy": "#343a40",
    "grpc": "#9aa5b1",
    "gRPC.TCP": "#9aa5b1",
}
_OTHERS = ("#e8590c", "#5f3dc4", "#2b8a3e", "#c2255c", "#1864ab", "#846358")
_STYLES = ("-", "--", "-.", ":")
_MEASURES = {SECONDS: "time (less is better)", BYTES_PER_SECOND: "bandwidth", PER_SECOND: "rate"}
# What no way can pass is dashed.
_LIMITS = ("memcpy",)
_FEWEST_SIZES = 3

Case = tuple[str, list[Result]]


def colour(way: str, ways: Sequence[str]) -> str:
    """The colour of a way, which is the same in all pictures of a suite."""
    unnamed = [each for each in ways if each not in _COLOURS]
    return _COLOURS.get(way) or _OTHERS[unnamed.index(way) % len(_OTHERS)]


def line(way: str, ways: Sequence[str]) -> dict[str, Any]:
    """Return how matplotlib draws the line of a way: where a colour repeats, dashes tell ways apart."""
    paint = colour(way, ways)
    alike = [each for each in ways if colour(each, ways) == paint]
    style = "--" if way in _LIMITS else _STYLES[alike.index(way) % len(_STYLES)]
    return {"color": paint, "linestyle": style}


def legend(axes: Axes) -> None:
    """Name the lines beside the picture, where they hide none."""
    axes.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1.01, 1))


def by_case(results: Sequence[Result]) -> Iterator[Case]:
    """The results of each case, with all sizes."""
    cases: dict[str, list[Result]] = {}
    for result in results:
        cases.setdefault(result.case, []).append(result)
    yield from cases.items()


def pictures(results: Sequence[Result]) -> list[tuple[str, str]]:
    """The pictures of one suite, each with its name and as SVG.

    Cases with several sizes are drawn by size, losses over time, and the remaining cases as bars.
    """
    swept, single, curves = [], [], []
    for case, several in by_case(results):
        sizes = {result.nbytes for result in several if result.nbytes}
        if any(result.unit == LOSS for result in several):
            curves.append((case, several))
        elif len(sizes) >= _FEWEST_SIZES:
            swept.append((case, several))
        else:
            single += [result for result in several if result.unit == SECONDS]
    ways = ways_of(results)
    made = [(case, _by_size(case, several, ways)) for case, several in swept]
    made += [(case, _curves(case, several, ways)) for case, several in curves]
    return made + ([("times", _bars(single, ways))] if single else [])


def svg(figure: Figure) -> str:
    """The picture as text, which is the same each time."""
    text = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": "rdmatensor", "svg.fonttype": "none"}):
        figure.savefig(text, format="svg", bbox_inches="tight", metadata={"Date": None})
    svg = text.getvalue()
    return svg[svg.index("<svg") :]


def tidy(axes: Axes) -> None:
    """Takes away what a reader does not need."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25, which="major")


def logarithmic(axes: Axes, text: Callable[[float], str]) -> None:
    """Use a logarithmic vertical axis, with enough labels for a narrow range."""
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter(lambda number, _: text(number))
    axes.yaxis.set_minor_locator(NullLocator())


def _sized(axes: Axes, results: Sequence[Result]) -> None:
    """Use a horizontal axis of sizes."""
    sizes = sorted({result.nbytes for result in results if result.nbytes})
    axes.set_xscale("log", base=2)
    axes.set_xticks(
        sizes, [named_size(nbytes) for nbytes in sizes], rotation=40, ha="right", fontsize=8
    )
    axes.minorticks_off()


def _by_size(case: str, results: list[Result], ways: Sequence[str]) -> str:
    """Medians by size with p10 to p90 shaded, and beside them the ratios to the rivals."""
    figure = Figure(figsize=(11, 3.6))
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    unit = results[0].unit
    for way in ways_of(results):
        points = sorted((r for r in results if r.way == way and r.nbytes), key=_nbytes)
        sizes = [_nbytes(result) for result in points]
        spreads = [result.spread for result in points]
        kind = line(way, ways)
        left.plot(sizes, [each.median for each in spreads], marker="o", ms=3, label=way, **kind)
        left.fill_between(
            *(sizes, [each.p10 for each in spreads], [each.p90 for each in spreads]),
            color=kind["color"],
            alpha=0.15,
        )
    logarithmic(left, lambda number: value(number, unit))
    left.set_ylabel(_MEASURES.get(unit, unit))
    left.set_title(case, loc="left", fontsize=10)
    left.legend(frameon=False, fontsize=8)
    for axes in (left, right):
        _sized(axes, results)
        tidy(axes)
    if _ratios(right, results, ways):
        right.set_title("speedup over the rival", loc="left", fontsize=10)
    else:
        right.remove()
    return svg(figure)


def _nbytes(result: Result) -> int:
    return result.nbytes or 0


def _ratios(axes: Axes, results: list[Result], ways: Sequence[str]) -> bool:
    """Draw the ratios of the first way to the others, with p10 to p90 of turns. False if it is alone."""
    ours, *rivals = ways_of(results)
    for way in rivals:
        points = []
        for several in by_key(results).values():
            pair = {each.way: each for each in several}
            if ours in pair and way in pair:
                points.append((pair[ours], pair[way]))
        points.sort(key=lambda pair: _nbytes(pair[0]))
        sizes = [_nbytes(mine) for mine, _ in points]
        ratios = [mine.better_than(theirs) for mine, theirs in points]
        axes.plot(sizes, ratios, marker="o", ms=3, label=f"over {way}", **line(way, ways))
        turns = [turn_ratios(*pair) for pair in points]
        for at, spread in zip(sizes, turns, strict=True):
            if spread:
                axes.plot([at, at], [spread.p10, spread.p90], color=colour(way, ways), lw=1)
    axes.axhline(1, color="#343a40", lw=1)
    if rivals:
        logarithmic(axes, lambda number: f"{number:g}x")
        axes.legend(frameon=False, fontsize=8)
    return bool(rivals)


def _bars(results: list[Result], ways: Sequence[str]) -> str:
    """A group of bars per case: medians, p10 to p90 as a line, and the ratio to the rival as text."""
    cases = by_key(results)
    shown = [way for way in ways if any(result.way == way for result in results)]
    figure = Figure(figsize=(11, 0.22 * len(shown) * len(cases) + 1.2))
    axes = figure.subplots()
    height = 0.8 / len(shown)
    for position, several in enumerate(cases.values()):
        for result in several:
            spread = result.spread
            at = position + (shown.index(result.way) - (len(shown) - 1) / 2) * height
            axes.barh(at, spread.median, height, color=colour(result.way, ways))
            axes.plot([spread.p10, spread.p90], [at, at], color="#343a40", lw=1)
            rival = next((each for each in several if each.way == result.rival), None)
            times = f" {result.better_than(rival):.3g}x {rival.way}" if rival else ""
            text = f" {value(spread.median, result.unit)}{times}"
            axes.text(max(spread.p90, spread.median), at, text, va="center", fontsize=7)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(lambda number, _: value(number, SECONDS))
    axes.set_xlabel(_MEASURES[SECONDS])
    names = [f"{case} {named_size(nbytes)}".strip() for _, case, nbytes in cases]
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.invert_yaxis()
    axes.margins(x=0.15)
    handles = [Patch(color=colour(way, ways), label=way) for way in shown]
    axes.legend(handles=handles, frameon=False, fontsize=8, ncols=len(shown), loc="lower left",
                bbox_to_anchor=(0, 1))  # fmt: skip
    tidy(axes)
    return svg(figure)


def _curves(case: str, results: list[Result], ways: Sequence[str]) -> str:
    """Losses over the time of training."""
    figure = Figure(figsize=(7, 3.4))
    axes = figure.subplots()
    for way in ways_of(results):
        losses = next((r for r in results if r.way == way and r.unit == LOSS), None)
        times = next((r for r in results if r.way == way and r.unit == SECONDS), None)
        if losses and times and len(losses.samples) == len(times.samples):
            axes.plot(times.samples, losses.samples, color=colour(way, ways), label=way)
    axes.set_xlabel("seconds")
    axes.set_ylabel("loss")
    axes.set_title(case, loc="left", fontsize=10)
    axes.legend(frameon=False, fontsize=8)
    tidy(axes)
    return svg(figure)
