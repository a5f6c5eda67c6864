# SPDX-License-Identifier: Apache-2.0
"""The best transport between two tasks fails: tensors take the next one. Here shm is better than tcp."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from plugin.transports import LOST, go_over, needs_shm, received_over, sources
from support.clusters import STEP_S, Cluster
from support.graphs import TASK0, TASK1, Session, cross, session, v1

pytestmark = needs_shm
SIZE = 100_000


def _build() -> Any:
    with tf.device(TASK0):
        value = v1.placeholder(tf.float32, [])
        there = tf.fill([SIZE], value)
    with tf.device(TASK1):
        return value, cross(there * 2)


def _step(opened: Session, number: float) -> None:
    value, result = opened.built
    np.testing.assert_array_equal(opened.run(result, {value: number}), np.full(SIZE, 2 * number))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    settings = {"RDMATENSOR_FAULTS": "transport=shm,break=#1000000"}
    folder = tmp_path_factory.mktemp("next_transport")
    made = Cluster.pair(folder, settings)
    yield made
    made.close()


def _inject(cluster: Cluster, faults: str) -> None:
    for task in cluster.tasks:
        task.ask(f"faults {faults}")


def test_lost_then_the_next_then_back(cluster: Cluster) -> None:
    with session(cluster, _build) as opened:
        go_over(cluster, lambda: _step(opened, 3.0), "shm")
        _inject(cluster, "transport=shm,break=1,connect=1")
        go_over(cluster, lambda: _step(opened, 3.0), "tcp")
        for source in sources(cluster):
            assert "not shm: " in source["why"], source
        cluster.reset_stats()
        _step(opened, 4.0)
        sent = [cluster.stats(index)["transports"]["tcp"]["sent_bytes"] for index in (0, 1)]
        assert min(sent) >= 4 * SIZE
        _inject(cluster, "transport=tcp,break=1")
        go_over(cluster, lambda: _step(opened, 3.0), "shm")
        _inject(cluster, "transport=shm,break=#1000000")


def test_memory_that_one_transport_does_not_reach(cluster: Cluster) -> None:
    with session(cluster, _build) as opened:
        go_over(cluster, lambda: _step(opened, 3.0), "shm")
        _inject(cluster, "transport=shm,break=1,map=1")
        end = time.monotonic() + STEP_S
        # A step may break one channel and need no other.
        while "shm" in received_over(cluster):
            assert time.monotonic() < end, sources(cluster)
            with suppress(*LOST):
                _step(opened, 3.0)
        _inject(cluster, "transport=shm,map=1")
        go_over(cluster, lambda: _step(opened, 3.0), "tcp")
        _step(opened, 5.0)
        _inject(cluster, "transport=shm,break=#1000000")
