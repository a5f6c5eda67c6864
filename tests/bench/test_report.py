# SPDX-License-Identifier: Apache-2.0
"""Tables and pages of records: every way and rival is shown, and nothing is fetched from elsewhere."""

from __future__ import annotations

import re
from typing import Any

import pytest
from rich.console import Console

import page
import record
import report


def example() -> record.Run:
    """Sizes and single cases, each done in two ways; a rival is missing."""
    run = record.Run("example", record.Environment.here())

    def add(suite: str, case: str, way: str, unit: str, middle: float, **more: Any) -> None:
        samples = [middle * factor for factor in (0.9, 1.0, 1.2)]
        run.results.append(record.Result(suite, case, way, unit, samples, **more))

    for nbytes in (8, 4096, 1 << 20):
        own = {"nbytes": nbytes, "rival": "UCX", "target": 1.5}
        add("micro", "write bandwidth", "rdmatensor", record.BYTES_PER_SECOND, 2e9, **own)
        add("micro", "write bandwidth", "UCX", record.BYTES_PER_SECOND, 1e9, nbytes=nbytes)
    planned = {"rival": "grpc", "target": 50.0}
    add("steps", "1 x 64 MB <b>", "grpc", record.SECONDS, 0.2)
    add("steps", "1 x 64 MB <b>", "static", record.SECONDS, 0.01, **planned)
    run.missing.append(record.Missing("NIXL", "not installed", "pip install nixl"))
    run.faults.append("a wrong value")
    return run


def shown(run: record.Run) -> str:
    console = Console(width=140, record=True, file=open("/dev/null", "w"))  # noqa: PTH123, SIM115
    report.show(console, run)
    return console.export_text()


def test_tables_show_medians_ratios_and_what_is_missing() -> None:
    text = shown(example())
    assert re.search(r"write bandwidth 8 B .* 2 GB/s .* 1 GB/s .* 2x UCX", text)
    assert re.search(r"20x grpc, wanted 50", text)
    assert "not measured: NIXL: not installed; pip install nixl" in text
    assert "a wrong value" in text


def test_missed_targets_are_told() -> None:
    assert report.missed(example()) == ["steps: 1 x 64 MB <b>: 20x grpc, wanted 50x"]


def test_the_page_is_what_the_record_gives() -> None:
    text = page.page(page.read())
    assert text == page.PAGE.read_text(), "run make docs"
    assert len(text.splitlines()) <= 200


def test_the_page_has_each_way_and_its_ratio() -> None:
    ours, theirs = example().results[:2]
    line = page.row("micro", "write bandwidth 8 B", [ours, theirs])
    assert line == (
        "| micro: write bandwidth 8 B | rdmatensor 2 GB/s (1.8 .. 2.4 GB/s); "
        "UCX 1 GB/s (900 MB/s .. 1.2 GB/s) | rdmatensor 2x (wanted 1.5) |"
    )


@pytest.mark.parametrize(("over", "text"), [(250e-6, "250 us"), (-3e-6, "-3 us")])
def test_the_time_over_the_floor_is_shown_where_it_was_measured(over: float, text: str) -> None:
    run = example()
    assert "over the floor" not in shown(run)
    (ours,) = (each for each in run.results if each.way == "static")
    ours.parameters["over_floor_s"] = over
    assert "over the floor" in shown(run)
    assert re.search(rf"wanted 50 +│ +{text} │", shown(run))
