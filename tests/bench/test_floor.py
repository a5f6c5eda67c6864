# SPDX-License-Identifier: Apache-2.0
"""The floor of a step is subtracted from every way, recorded, and compared with none."""

from __future__ import annotations

import pytest

from harness import Bench
from record import SECONDS, Environment, Run
from tf_cases import Case
from tf_measure import DYNAMIC, FLOOR, GRPC, LOCAL, Result, Use, Way, add

CASE = Case("step", {}, 0, path="static")


def _result(way: Way, seconds: float) -> Result:
    none = {"sent_tensors": 0, "sent_bytes": 0}
    paths = dict.fromkeys(("static", "bounded", "inline", "dynamic", "bounce", "rpc"), none)
    use = Use([{"paths": paths, "rpc_reasons": {}, "peers": []}])
    return Result([[seconds] * 3], way, steps=3, carried=[0.0], use=use)


@pytest.fixture
def results() -> list[Result]:
    return [_result(GRPC, 0.003), _result(DYNAMIC, 0.001), _result(LOCAL, 0.0004)]


@pytest.fixture
def bench() -> Bench:
    return Bench(Run("steps", Environment.here()))


def test_the_record_has_the_floor_as_a_way_without_a_rival(
    bench: Bench, results: list[Result]
) -> None:
    add(bench, "suite", CASE, results)
    assert bench.run.faults == []
    recorded = {each.way: each for each in bench.run.results}
    assert list(recorded) == [GRPC.name, DYNAMIC.name, FLOOR]
    assert recorded[GRPC.name].parameters["over_floor_s"] == pytest.approx(0.0026)
    assert recorded[DYNAMIC.name].parameters["over_floor_s"] == pytest.approx(0.0006)
    assert recorded[DYNAMIC.name].rival == GRPC.name
    assert recorded[FLOOR].rival == ""
    assert recorded[FLOOR].unit == SECONDS
    assert recorded[FLOOR].parameters["over_floor_s"] is None


def test_losses_that_differ_are_a_fault(bench: Bench, results: list[Result]) -> None:
    results[0].losses.append(1.0)
    add(bench, "suite", CASE, results, same_losses=False)
    assert bench.run.faults == []
    add(bench, "suite", CASE, results)
    assert bench.run.faults == ["step: the losses differ"]
