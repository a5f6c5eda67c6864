# SPDX-License-Identifier: Apache-2.0
"""What trainings are compared by: batches that only their number decides, time to target, equal losses."""

from __future__ import annotations

import numpy as np
import pytest

from bench_converge import Course, faults_of
from converge_data import Data, Digits, Words
from tf_measure import Use


@pytest.fixture(scope="module", params=[Digits, Words])
def data(request: pytest.FixtureRequest) -> Data:
    made: Data = request.param()
    return made


def test_batches_depend_on_step_and_worker_only(data: Data) -> None:
    again = type(data)()
    for one, other in zip(data.batch(3, 1, 16), again.batch(3, 1, 16), strict=True):
        np.testing.assert_array_equal(one, other)
    for step, worker in ((4, 1), (3, 0)):
        assert not np.array_equal(data.batch(3, 1, 16)[0], data.batch(step, worker, 16)[0])


def test_what_is_held_out_is_in_no_batch(data: Data) -> None:
    assert set(data._test).isdisjoint(data._train)
    assert len(data._test) > 100
    inputs, labels = data.held_out(8)
    expected = data.examples(data._test[:8])
    np.testing.assert_array_equal(inputs, expected[0])
    np.testing.assert_array_equal(labels, expected[1])


def _course(way: str, losses: list[float], held_out: list[float]) -> Course:
    return Course(way, 1.0, [0.5] * 20 * len(held_out), losses, held_out)


def test_time_to_target_ends_with_the_block() -> None:
    assert _course("grpc", [], [1.5, 0.9, 1.1]).seconds_to_target() == 20
    assert _course("grpc", [], [1.5, 1.1]).seconds_to_target() is None


def test_losses_that_differ_are_a_fault() -> None:
    counts = {"sent_tensors": 1, "sent_bytes": 1}
    paths = {path: dict(counts) for path in ("static", "bounded", "inline", "dynamic", "bounce")}
    none = {"sent_tensors": 0, "sent_bytes": 0}
    use = Use([{"paths": paths | {"rpc": none}, "rpc_reasons": {}, "peers": [], "transports": {}}])
    stock = _course("grpc", [2.0, 1.0], [1.0])
    same, other = (_course("grpc+rdma", [2.0, last], [1.0]) for last in (1.0, 1.0000001))
    same.use = other.use = use
    assert faults_of("model", [stock, same]) == []
    (fault,) = faults_of("model", [stock, other])
    assert "differ from those over grpc from step 1 on" in fault
