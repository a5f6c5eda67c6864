# SPDX-License-Identifier: Apache-2.0
"""What measurements switch off is off, the counters say so, and values are right all the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from plugin.planned import until_connected, warm_up
from support.clusters import Cluster
from support.graphs import TASK0, TASK1, session, v1

SMALL, LARGE = 100, 100_000
STEPS = 3


@pytest.fixture
def ablated(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster]:
    """Two workers; the parameters are the settings of both, or those of the first and of the second."""
    first, second = request.param
    cluster = Cluster(["grpc+rdma", "grpc+rdma"], tmp_path, {0: first, 1: second})
    yield cluster
    cluster.close()


def _there_and_back() -> Any:
    """A variable of task 1 to task 0, and what is computed of it back."""
    results = []
    for number, elements in enumerate((SMALL, LARGE)):
        with tf.device(TASK1):
            variable = v1.get_variable(f"v{number}", initializer=np.arange(elements, dtype="f4"))
        with tf.device(TASK0):
            doubled = variable * 2.0
        with tf.device(TASK1):
            results.append(tf.reduce_sum(doubled))
    return results


def _run(
    cluster: Cluster, prepare: Callable[[Cluster, Callable[..., Any]], object] | None = None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The counters of both tasks after STEPS steps with right results, which `prepare` may precede."""
    with session(cluster, _there_and_back) as opened:

        def step() -> None:
            sums = opened.run(opened.built)
            np.testing.assert_allclose(sums, [n * (n - 1.0) for n in (SMALL, LARGE)], rtol=1e-5)

        if prepare:
            prepare(cluster, step)
        for _ in range(STEPS):
            step()
        cluster.reset_stats()
        for _ in range(STEPS):
            step()
    return cluster.stats(0), cluster.stats(1)


COPY = {"RDMATENSOR_TEST_ABLATION": "1"}
RPC = {"RDMATENSOR_TEST_ABLATION": "2"}


@pytest.mark.parametrize("ablated", [(RPC, RPC)], indirect=True, ids=["both"])
def test_rpc_fetches_every_tensor_over_a_channel(ablated: Cluster) -> None:
    for stats in _run(ablated, until_connected):
        assert stats["paths"]["rpc"]["sent_tensors"] >= 2 * STEPS
        assert stats["paths"]["rpc"]["sent_bytes"] >= STEPS * 4 * (SMALL + LARGE)
        for path in ("static", "bounded", "inline", "dynamic", "bounce"):
            assert stats["paths"][path]["sent_tensors"] == 0, path
        (calls,) = stats["control"].values()
        assert calls["channel_calls"] >= 2 * STEPS
        assert calls["grpc_calls"] == 0


@pytest.mark.parametrize("ablated", [(COPY, COPY)], indirect=True, ids=["both"])
def test_copy_lends_nothing(ablated: Cluster) -> None:
    for stats in _run(ablated, warm_up):
        assert stats["paths"]["static"]["sent_bytes"] >= STEPS * 4 * LARGE
        assert stats["fetched"]["in_place"]["tensors"] == 0
        assert stats["paths"]["rpc"]["sent_tensors"] == 0


@pytest.mark.parametrize("ablated", [(RPC, {}), ({}, RPC)], indirect=True, ids=["0", "1"])
def test_one_task_may_ask_and_the_other_not(ablated: Cluster) -> None:
    asked = [stats["paths"]["rpc"]["sent_tensors"] for stats in _run(ablated)]
    assert sorted(number > 0 for number in asked) == [False, True]
