# SPDX-License-Identifier: Apache-2.0
"""The tables of runs, for a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from rdmatensor.units import binary_size, duration, size
from record import BYTES_PER_SECOND, PER_SECOND, SECONDS, Result, Run

Key = TypeVar("Key")


def value(number: float, unit: str) -> str:
    """A number with its unit: "12.3 us", "4.2 GB/s"."""
    if unit == SECONDS:
        return f"-{duration(-number)}" if number < 0 else duration(number)
    if unit == BYTES_PER_SECOND:
        return f"{size(number)}/s"
    if unit == PER_SECOND:
        return f"{number / 1e6:.3g} M/s" if number >= 1e6 else f"{number:.4g}/s"
    return f"{number:.4g} {unit}".strip()


def over_floor(result: Result) -> str:
    """How much longer a compared result takes than its step with nothing remote; "" if not measured."""
    over = result.parameters.get("over_floor_s")
    return value(over, SECONDS) if result.rival and isinstance(over, float) else ""


def named(case: str, nbytes: int | None) -> str:
    """A case with the size that it was measured with."""
    return case if nbytes is None else f"{case} {binary_size(nbytes)}"


def grouped(results: Iterable[Result], key: Callable[[Result], Key]) -> dict[Key, list[Result]]:
    """The results with the same key, in the order measured."""
    groups: dict[Key, list[Result]] = {}
    for result in results:
        groups.setdefault(key(result), []).append(result)
    return groups


def by_key(results: Iterable[Result]) -> dict[tuple[str, str, int | None], list[Result]]:
    """The results grouped by case."""
    return grouped(results, lambda result: result.key)


def rival_of(ours: Result, others: Sequence[Result]) -> Result | None:
    """The result of the same case that a result is compared with."""
    return next((each for each in others if each.way == ours.rival), None)


def comparison(ours: Result, others: Sequence[Result]) -> str:
    """The ratio to the rival: "2.5x UCX, wanted 3", in green or red if it has a target; or ""."""
    rival = rival_of(ours, others)
    if rival is None:
        return ""
    ratio = ours.better_than(rival)
    text = escape(f"{ratio:.3g}x {rival.way}")
    if ours.target is None:
        return text
    met = ratio >= ours.target
    return f"[green]{text}[/]" if met else f"[red]{text}, wanted {ours.target:.3g}[/]"


def table(suite: str, results: Sequence[Result]) -> Table:
    """The medians of a suite, with a line for each case and a column for each way."""
    ways = list(dict.fromkeys(result.way for result in results))
    made = Table(title=suite, title_justify="left")
    made.add_column("")
    for way in ways:
        made.add_column(escape(way), justify="right")
    made.add_column("compared")
    floors = any(map(over_floor, results))
    if floors:
        made.add_column("over the floor", justify="right")
    for (_, case, nbytes), several in by_key(results).items():
        cells = {each.way: value(each.spread.median, each.unit) for each in several}
        compared = ", ".join(filter(None, (comparison(each, several) for each in several)))
        made.add_row(
            escape(named(case, nbytes)),
            *(cells.get(way, "") for way in ways),
            compared,
            *(["".join(map(over_floor, several))] if floors else []),
        )
    return made


def show(console: Console, run: Run) -> None:
    """Print the machine, a table for each suite, missing rivals, and faults in red."""
    console.print(escape(run.environment.summary), highlight=False)
    for suite, results in grouped(run.results, lambda result: result.suite).items():
        console.print(table(suite, results))
    for each in run.missing:
        line = f"not measured: {each.name}: {each.why}; {each.remedy}"
        console.print(f"[yellow]{escape(line)}[/]")
    for fault in run.faults:
        console.print(f"[red]{escape(fault)}[/]")


def missed(run: Run) -> list[str]:
    """A line for each target that the run missed."""
    lines = []
    for (suite, case, nbytes), several in by_key(run.results).items():
        for ours in several:
            rival = rival_of(ours, several)
            if rival is None or ours.target is None or ours.better_than(rival) >= ours.target:
                continue
            ratio = ours.better_than(rival)
            where = f"{suite}: {named(case, nbytes)}"
            lines.append(f"{where}: {ratio:.3g}x {rival.way}, wanted {ours.target:.3g}x")
    return lines
