# SPDX-License-Identifier: Apache-2.0
"""Tables for a terminal of what runs measured."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ..demo.timing import Distribution, duration, size
from .record import BYTES_PER_SECOND, LOSS, PER_SECOND, SECONDS, Missing, Result, Run

Key = tuple[str, str, int | None]


def value(number: float, unit: str) -> str:
    """A number with its unit, for people: "12.3 us", "4.2 GB/s"."""
    if unit == SECONDS:
        return duration(number)
    if unit == BYTES_PER_SECOND:
        return f"{size(number)}/s"
    if unit == PER_SECOND:
        return f"{number / 1e6:.3g} M/s" if number >= 1e6 else f"{number:.4g}/s"
    return f"{number:.4g} {unit}".strip()


def binary(nbytes: int | None) -> str:
    """A size as cases are named by it, in powers of two; "" for none."""
    if nbytes is None:
        return ""
    for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if nbytes >= scale:
            return f"{nbytes / scale:.4g} {unit}"
    return f"{nbytes} B"


def by_key(results: Iterable[Result]) -> dict[Key, list[Result]]:
    """The ways of each case together, in the order measured."""
    cases: dict[Key, list[Result]] = {}
    for result in results:
        cases.setdefault(result.key, []).append(result)
    return cases


def by_suite(results: Iterable[Result]) -> dict[str, list[Result]]:
    """The results of each suite, in the order measured."""
    suites: dict[str, list[Result]] = {}
    for result in results:
        suites.setdefault(result.suite, []).append(result)
    return suites


def ways_of(results: Iterable[Result]) -> list[str]:
    """The names of the ways, in the order in which they appear."""
    return list(dict.fromkeys(result.way for result in results))


def turn_ratios(ours: Result, rival: Result) -> Distribution | None:
    """How many times as good `ours` is in single turns; None if these are not known of both."""
    if not ours.turns or len(ours.turns) != len(rival.turns):
        return None
    pairs = zip(ours.turns, rival.turns, strict=True)
    if ours.unit == SECONDS:
        return Distribution.of([theirs / mine for mine, theirs in pairs])
    return Distribution.of([mine / theirs for mine, theirs in pairs])


def comparison(ours: Result, others: Sequence[Result]) -> str:
    """Of one way with its rival: "2.5x UCX (2.3 .. 2.6)", in green or red if there is a target; or ""."""
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
    """The median; of a curve, its end."""
    if result.unit == LOSS:
        return f"{result.samples[-1]:.4g} at the end"
    return value(result.spread.median, result.unit)


def table(suite: str, results: Sequence[Result]) -> Table:
    """Medians of all cases of a suite, a line for each, a column for each way."""
    ways = ways_of(results)
    made = Table(title=suite, title_justify="left")
    made.add_column("")
    made.add_column("size", justify="right")
    for way in ways:
        made.add_column(escape(way), justify="right")
    made.add_column("compared")
    last = ""
    for (_, case, nbytes), several in by_key(results).items():
        cells = {each.way: cell(each) for each in several}
        compared = filter(None, (comparison(each, several) for each in several))
        made.add_row(
            escape(case) if case != last else "",
            binary(nbytes),
            *(cells.get(way, "") for way in ways),
            ", ".join(compared),
        )
        last = case
    return made


def missing_lines(missing: Iterable[Missing]) -> list[str]:
    """What was not there, and how to get it."""
    return [f"not measured: {each.name}: {each.why}; {each.remedy}" for each in missing]


def show(console: Console, run: Run) -> None:
    """Print everything: the machine, a table for each suite, what was missing, and faults in red."""
    console.print(escape(run.environment.summary), highlight=False)
    for suite, results in by_suite(run.results).items():
        console.print(table(suite, results))
    for line in missing_lines(run.missing):
        console.print(f"[yellow]{escape(line)}[/]")
    for fault in run.faults:
        console.print(f"[red]{escape(fault)}[/]")


def missed(run: Run) -> list[str]:
    """The targets that the run missed, in words."""
    lines = []
    for (suite, case, nbytes), several in by_key(run.results).items():
        for ours in several:
            rival = next((r for r in several if r.way == ours.rival), None)
            if rival is None or ours.target is None or ours.better_than(rival) >= ours.target:
                continue
            ratio = ours.better_than(rival)
            where = f"{suite}: {case} {binary(nbytes)}".strip()
            lines.append(f"{where}: {ratio:.3g}x {rival.way}, wanted {ours.target:.3g}x")
    return lines
