# SPDX-License-Identifier: Apache-2.0
"""Tables and pages of records: every way and rival is shown, and nothing is fetched from elsewhere."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

import pytest
from rich.console import Console

from rdmatensor.bench import record, report

VOID = {"meta", "br"}


def example() -> record.Run:
    """Sizes, single cases and a loss over time, each done in two ways; a rival is missing."""
    run = record.Run("example", record.Environment.here(transport="shm"))

    def add(suite: str, case: str, way: str, unit: str, middle: float, **more: Any) -> None:
        samples = [middle * factor for factor in (0.9, 1.0, 1.2)]
        turns = {"turns": [middle, middle * 1.1]}
        run.results.append(record.Result(suite, case, way, unit, samples, **{**turns, **more}))

    for nbytes in (8, 4096, 1 << 20):
        own = {"nbytes": nbytes, "rival": "UCX", "target": 1.5}
        add("micro", "write bandwidth", "rdmatensor", record.BYTES_PER_SECOND, 2e9, **own)
        add("micro", "write bandwidth", "UCX", record.BYTES_PER_SECOND, 1e9, nbytes=nbytes)
    planned = {"rival": "grpc", "target": 50.0}
    add("steps", "1 x 64 MB <b>", "grpc", record.SECONDS, 0.2)
    add("steps", "1 x 64 MB <b>", "static", record.SECONDS, 0.01, **planned)
    for way in ("grpc", "static"):
        add("convergence", "digits", way, record.SECONDS, 3.0)
        add("convergence", "digits", way, "loss", 0.5)
    run.missing.append(record.Missing("NIXL", "not installed", "pip install nixl"))
    run.faults.append("a wrong value")
    return run


def shown(run: record.Run) -> str:
    console = Console(width=140, record=True, file=open("/dev/null", "w"))  # noqa: PTH123, SIM115
    report.show(console, run)
    return console.export_text()


def test_tables_show_medians_ratios_and_what_is_missing() -> None:
    text = shown(example())
    assert re.search(r"write bandwidth .* 8 B .* 2 GB/s .* 1 GB/s .* 2x UCX", text)
    assert re.search(r"20x grpc .*, wanted 50", text)
    assert "not measured: NIXL: not installed; pip install nixl" in text
    assert "a wrong value" in text


def test_missed_targets_are_told() -> None:
    assert report.missed(example()) == ["steps: 1 x 64 MB <b>: 20x grpc, wanted 50x"]


def test_a_single_turn_has_no_spread_and_other_units_no_ratio() -> None:
    ours, theirs = example().results[:2]
    assert report.turn_ratios(ours, theirs) is not None
    theirs.turns.pop()
    assert report.turn_ratios(ours, theirs) is None


class _Balanced(HTMLParser):
    """Knows which tags are open; `outside` are addresses that a browser would fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.outside: list[str] = []
        self.seen: dict[str, int] = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen[tag] = self.seen.get(tag, 0) + 1
        fetched = ("src", "href", "xlink:href")
        self.outside += [v for k, v in attrs if k in fetched and v and not v.startswith("#")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        while self.open and self.open.pop() != tag:
            pass


def test_the_page_is_complete_in_itself() -> None:
    pytest.importorskip("matplotlib")
    pytest.importorskip("jinja2")
    from rdmatensor.bench.page import page

    html = page([example()])
    parser = _Balanced()
    parser.feed(html)
    assert parser.outside == []
    assert "@import" not in html
    assert parser.seen["svg"] == 3  # by size, bars, the losses
    assert parser.seen["tr"] >= 3 + 1 + 1
    for text in ("UCX", "20x grpc, wanted 50x", "NIXL", "a wrong value", "1 x 64 MB &lt;b&gt;"):
        assert text in html


@pytest.mark.parametrize(("over", "text"), [(250e-6, "250 us"), (-3e-6, "-3 us")])
def test_the_time_over_the_floor_is_shown_where_it_was_measured(over: float, text: str) -> None:
    run = example()
    assert "over the floor" not in shown(run)
    ours = run.find("steps", "1 x 64 MB <b>", None, "static")
    assert ours is not None
    ours.parameters["over_floor_s"] = over
    assert "over the floor" in shown(run)
    assert re.search(rf"wanted 50 +│ +{text} │", shown(run))
