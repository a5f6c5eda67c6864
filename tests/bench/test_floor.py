# SPDX-License-Identifier: Apache-2.0
"""The floor of a step is subtracted from every way, recorded, and compared with none."""

from __future__ import annotations

import pytest

import record
from harness import Bench
from tf_measure import DYNAMIC, FLOOR, GRPC, LOCAL, Result, Row, Samples, Use, Way


def _result(way: Way, seconds: float) -> Result:
    none = {"sent_tensors": 0, "sent_bytes": 0}
    paths = dict.fromkeys(("static", "bounded", "inline", "dynamic", "bounce", "rpc"), none)
    use = Use(
        [
            {
                "paths": paths,
                "rpc_reasons": {},
                "peers": [],
                "transports": {},
                "arena": {"peak_bytes": 0},
            }
        ]
    )
    return Result(way, Samples(blocks=[[seconds] * 3], steps=3, carried=[0.0]), use, use)


@pytest.fixture
def row() -> Row:
    results = [_result(GRPC, 0.003), _result(DYNAMIC, 0.001), _result(LOCAL, 0.0004)]
    return Row("step", 0, None, results[:2], None, results[2])


def test_a_row_knows_what_each_way_takes_over_the_floor(row: Row) -> None:
    assert [result.way for result in row.results] == [GRPC, DYNAMIC]
    over = [row.over_floor(result) for result in row.results]
    assert over == [pytest.approx(0.0026), pytest.approx(0.0006)]
    assert list(row.faults()) == []


def test_the_record_has_the_floor_as_a_way_without_a_rival(row: Row) -> None:
    bench = Bench(record.Run("steps", record.Environment.here()))
    row.record(bench, "suite")
    recorded = {each.way: each for each in bench.run.results}
    assert list(recorded) == [GRPC.name, DYNAMIC.name, FLOOR]
    assert recorded[DYNAMIC.name].rival == GRPC.name
    assert recorded[DYNAMIC.name].parameters["over_floor_s"] == pytest.approx(0.0006)
    assert recorded[FLOOR].rival == ""
    assert recorded[FLOOR].unit == record.SECONDS
    assert recorded[FLOOR].parameters["over_floor_s"] is None


def test_losses_that_differ_are_a_fault(row: Row) -> None:
    row.results[0].samples.losses.append(1.0)
    assert list(row.faults()) == ["the losses differ"]
