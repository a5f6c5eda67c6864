# SPDX-License-Identifier: Apache-2.0
"""A self-contained HTML page with the results of runs. Needs the extra `bench`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import jinja2

from ..units import size
from .plots import pictures
from .record import Result, Run
from .report import by_key, by_suite, named_size, value, ways_of


def page(runs: Sequence[Run], title: str = "rdmatensor: benchmarks") -> str:
    """The page. Suites with the same name are shown together, and nothing is loaded from the network."""
    loader = jinja2.PackageLoader("rdmatensor.bench", ".")
    template = jinja2.Environment(loader=loader, autoescape=True).get_template("report.html.j2")
    results = [result for run in runs for result in run.results]
    suites = [_suite(name, several) for name, several in by_suite(results).items()]
    return template.render(title=title, runs=runs, suites=suites, used=list(_used(results)))


def _suite(name: str, results: list[Result]) -> dict[str, Any]:
    ways = ways_of(results)
    rows = [_row(key, several, ways) for key, several in by_key(results).items()]
    drawn = [svg for _, svg in pictures(results)]
    return {"name": name, "ways": ways, "pictures": drawn, "rows": rows}


def _row(
    key: tuple[str, str, int | None], several: list[Result], ways: Sequence[str]
) -> dict[str, Any]:
    by_way = {result.way: result for result in several}
    return {
        "case": key[1],
        "size": named_size(key[2]),
        "cells": [_cell(by_way[way]) if way in by_way else None for way in ways],
        "compared": [each for result in several for each in _compared(result, by_way)],
    }


def _cell(result: Result) -> dict[str, str]:
    spread = result.spread
    low, high = (value(number, result.unit) for number in (spread.p10, spread.p90))
    return {"median": value(spread.median, result.unit), "spread": f"{low} .. {high}"}


def _compared(result: Result, by_way: dict[str, Result]) -> Iterator[dict[str, str]]:
    rival = by_way.get(result.rival)
    if rival is None or rival.unit != result.unit:
        return
    ratio = result.better_than(rival)
    text = f"{ratio:.3g}x {rival.way}"
    if result.target is None:
        yield {"text": text, "verdict": ""}
    elif ratio >= result.target:
        yield {"text": text, "verdict": "met"}
    else:
        yield {"text": f"{text}, wanted {result.target:.3g}x", "verdict": "missed"}


def _used(results: Sequence[Result]) -> Iterator[list[str]]:
    for result in results:
        for process in result.processes:
            case = f"{result.suite}: {result.case} {named_size(result.nbytes)}".strip()
            cpu = f"{process.cpu_seconds:.2f}"
            yield [case, result.way, process.name, cpu, size(process.peak_bytes)]
