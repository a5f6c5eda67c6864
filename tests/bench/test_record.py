# SPDX-License-Identifier: Apache-2.0
"""Records of benchmark runs: what is written is what is read, and a foreign file is an error in words."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

import record


def example() -> record.Run:
    run = record.Run("example", record.Environment.here())
    for way, samples in (("rdmatensor", [1e-6, 2e-6, 3e-6]), ("ucx", [4e-6, 4e-6])):
        run.results.append(
            record.Result(
                *("micro", "write latency", way, record.SECONDS, samples),
                nbytes=8,
                parameters={"depth": 1},
                rival="ucx",
                target=1.0,
            )
        )
    run.missing.append(record.Missing("nixl", "not installed", "pip install nixl"))
    run.finish(2.5)
    return run


def test_what_is_written_is_read(tmp_path: Path) -> None:
    run = example()
    run.write(tmp_path / "run.json")
    assert record.Run.read(tmp_path / "run.json") == run
    assert list(tmp_path.iterdir()) == [tmp_path / "run.json"]


def test_fields_of_later_versions_are_passed_over(tmp_path: Path) -> None:
    run = example()
    run.write(tmp_path / "run.json")
    fields = json.loads((tmp_path / "run.json").read_text())
    fields["colour"] = "blue"
    fields["results"][0]["smell"] = "none"
    assert record.Run.from_fields(fields, "text") == run


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("{", "not JSON"),
        ("[]", "schema None"),
        ('{"schema": 99}', "schema 99, not 1: measure again"),
        ('{"schema": 1}', "a field is missing"),
        ('{"schema": 1, "results": [3], "missing": [], "environment": {}}', "a field is missing"),
    ],
)
def test_a_foreign_file_is_named(text: str, cause: str, tmp_path: Path) -> None:
    path = tmp_path / "foreign.json"
    path.write_text(text)
    with pytest.raises(record.BadRecord, match=cause) as failure:
        record.Run.read(path)
    assert "foreign.json" in str(failure.value)


def test_better_is_less_time_and_more_bandwidth() -> None:
    ours, ucx = example().results
    assert ours.better_than(ucx) == pytest.approx(2)
    speeds = [
        record.Result("micro", "bandwidth", way, record.BYTES_PER_SECOND, [speed])
        for way, speed in (("rdmatensor", 3e9), ("ucx", 2e9))
    ]
    assert speeds[0].better_than(speeds[1]) == pytest.approx(1.5)


def test_thinning_keeps_quantiles() -> None:
    for count in (100_000, 50, 22):
        samples = [float(number**2) for number in range(count)][::-1]
        kept = record.thinned(samples, 21)
        assert len(kept) == 21
        before, after = record.Distribution.of(samples), record.Distribution.of(kept)
        assert dataclasses.astuple(after)[1:] == pytest.approx(dataclasses.astuple(before)[1:])


def test_merging_keeps_everything_and_says_what_is_missing_once() -> None:
    runs = [example(), example()]
    whole = record.merged("all", runs)
    assert len(whole.results) == 4
    assert len(whole.missing) == 1
    assert whole.seconds == 5.0


def test_two_runs_of_one_benchmark_are_shown_side_by_side() -> None:
    before, after = example(), example()
    after.results[1] = dataclasses.replace(after.results[1], case="read latency")
    runs = record.named_apart({"before.json": before, "after.json": after})
    assert [(each.way, each.rival) for run in runs for each in run.results] == [
        ("rdmatensor, before.json", "ucx"),
        ("ucx", "ucx"),
        ("rdmatensor, after.json", "ucx"),
        ("ucx", "ucx"),
    ]
