# SPDX-License-Identifier: Apache-2.0
"""The tables of runs, for a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from rdmatensor.units import binary_size, duration, size
from record import BYTES_PER_SECOND, LOSS, PER_SECOND, SECONDS, Distribution, Missing, Result, Run

Key = tuple[str, str, int | None]


def value(number: float, unit: str) -> str:
    """A number with its unit: "12.3 us", "4.2 GB/s"."""
    if unit == SECONDS:
        return duration(number)
    if unit == BYTES_PER_SECOND:
        return f"{size(number)}/s"
    if unit == PER_SECOND:
        return f"{number / 1e6:.3g} M/s" if number >= 1e6 else f"{number:.4g}/s"
    return f"{number:.4g} {unit}".strip()


def excess(seconds: float) -> str:
    """A difference of times, which may be negative: "250 us", "-3 us"."""
    return f"-{duration(-seconds)}" if seconds < 0 else duration(seconds)


def over_floor(results: Iterable[Result]) -> str:
    """How much longer the compared result takes than its step with nothing remote; "" if not measured."""
    for each in results:
        over = each.parameters.get("over_floor_s")
        if each.rival and isinstance(over, float):
            return excess(over)
    return ""


def named_size(nbytes: int | None) -> str:
    """The size that a case was measured with; "" for none."""
    return "" if nbytes is None else binary_size(nbytes)


def by_key(results: Iterable[Result]) -> dict[Key, list[Result]]:
    """The results grouped by case, in the order measured."""
    cases: dict[Key, list[Result]] = {}
    for result in results:
        cases.setdefault(result.key, []).append(result)
    return cases


def by_suite(results: Iterable[Result]) -> dict[str, list[Result]]:
    """The results grouped by suite, in the order measured."""
    suites: dict[str, list[Result]] = {}
    for result in results:
        suites.setdefault(result.suite, []).append(result)
    return suites


def ways_of(results: Iterable[Result]) -> list[str]:
    """The names of the ways, in the order of their results."""
    return list(dict.fromkeys(result.way for result in results))


def turn_ratios(ours: Result, rival: Result) -> Distribution | None:
    """The ratios in single turns; None unless both results have the same number of turns."""
    if not ours.turns or len(ours.turns) != len(rival.turns):
        return None
    slow, fast = (rival, ours) if ours.unit == SECONDS else (ours, rival)
    return Distribution.of([a / b for a, b in zip(slow.turns, fast.turns, strict=True)])


def comparison(ours: Result, others: Sequence[Result]) -> str:
    """The ratio to the rival: "2.5x UCX (2.3 .. 2.6)", in green or red if it has a target; or ""."""
    rival = next((r for r in others if r.way == ours.rival and r.unit == ours.unit), None)
    if rival is None:
        return ""
    ratio = ours.better_than(rival)
    turns = turn_ratios(ours, rival)
    spread = f" ({turns.p10:.3g} .. {turns.p90:.3g})" if turns and turns.count > 1 else ""
    text = escape(f"{ratio:.3g}x {rival.way}{spread}")
    if ours.target is None:
        return text
    met = ratio >= ours.target
    verdict = "" if met else f", wanted {ours.target:.3g}"
    return f"[{'green' if met else 'red'}]{text}{verdict}[/]"


def cell(result: Result) -> str:
    """The median, or the last value of a curve."""
    if result.unit == LOSS:
        return f"{result.samples[-1]:.4g} at the end"
    return value(result.spread.median, result.unit)


def table(suite: str, results: Sequence[Result]) -> Table:
    """The medians of a suite, with a line for each case and a column for each way."""
    ways = ways_of(results)
    made = Table(title=suite, title_justify="left")
    made.add_column("")
    made.add_column("size", justify="right")
    for way in ways:
        made.add_column(escape(way), justify="right")
    made.add_column("compared")
    cases = by_key(results)
    floors = any(map(over_floor, cases.values()))
    if floors:
        made.add_column("over the floor", justify="right")
    last = ""
    for (_, case, nbytes), several in cases.items():
        cells = {each.way: cell(each) for each in several}
        compared = filter(None, (comparison(each, several) for each in several))
        made.add_row(
            escape(case) if case != last else "",
            named_size(nbytes),
            *(cells.get(way, "") for way in ways),
            ", ".join(compared),
            *([over_floor(several)] if floors else []),
        )
        last = case
    return made


def missing_lines(missing: Iterable[Missing]) -> list[str]:
    """The rivals that were not available, and how to install them."""
    return [f"not measured: {each.name}: {each.why}; {each.remedy}" for each in missing]


def show(console: Console, run: Run) -> None:
    """Print the machine, a table for each suite, missing rivals, and faults in red."""
    console.print(escape(run.environment.summary), highlight=False)
    for suite, results in by_suite(run.results).items():
        console.print(table(suite, results))
    for line in missing_lines(run.missing):
        console.print(f"[yellow]{escape(line)}[/]")
    for fault in run.faults:
        console.print(f"[red]{escape(fault)}[/]")


def missed(run: Run) -> list[str]:
    """A line for each target that the run missed."""
    lines = []
    for (suite, case, nbytes), several in by_key(run.results).items():
        for ours in several:
            rival = next((r for r in several if r.way == ours.rival), None)
            if rival is None or ours.target is None or ours.better_than(rival) >= ours.target:
                continue
            ratio = ours.better_than(rival)
            where = f"{suite}: {case} {named_size(nbytes)}".strip()
            lines.append(f"{where}: {ratio:.3g}x {rival.way}, wanted {ours.target:.3g}x")
    return lines
