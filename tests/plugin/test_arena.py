# SPDX-License-Identifier: Apache-2.0
"""Tensors that do not lie in the arena, and an arena without room for what is sent."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from support import warm
from support.clusters import Cluster
from support.graphs import TASK1, cross, session, v1

MIB = 1 << 20
LIMIT = 8 * MIB


@pytest.fixture(scope="module")
def shared_small_arena(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    settings = {"RDMATENSOR_ARENA_LIMIT": "8M", "RDMATENSOR_PLAN": "off"}
    cluster = Cluster.pair(tmp_path_factory.mktemp("small_arena"), settings)
    yield cluster
    cluster.close()


@pytest.fixture
def small_arena(shared_small_arena: Cluster) -> Cluster:
    shared_small_arena.reset_stats()
    return shared_small_arena


def test_tensor_outside_the_arena_is_copied_into_it(small_arena: Cluster) -> None:
    """A variable made while the arena was full lies in ordinary memory, also when there is room."""
    elements = 5 * MIB // 4

    def build() -> Any:
        with tf.device(TASK1):
            # Without initial values: those would come in any order.
            occupant, outsider = (
                tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=[elements], shared_name=name)
                for name in ("occupant", "outsider")
            )
            value = v1.placeholder(tf.float32, [])
            fill = [
                tf.raw_ops.AssignVariableOp(resource=each, value=tf.fill([elements], value))
                for each in (occupant, outsider)
            ]
            leave = tf.raw_ops.DestroyResourceOp(resource=occupant)
            read = tf.raw_ops.ReadVariableOp(resource=outsider, dtype=tf.float32)
        return fill, value, leave, cross(read)

    with session(small_arena, build) as opened:
        (fill_first, fill_second), value, leave, received = opened.built
        opened.run(fill_first, {value: 1.0})
        opened.run(fill_second, {value: 7.0})
        assert small_arena.stats(1)["arena"]["exhausted_allocations"] > 0
        opened.run(leave)
        small_arena.reset_stats()
        for _ in range(3):
            np.testing.assert_array_equal(opened.run(received), np.full(elements, 7.0, "f"))
        stats = small_arena.stats(1)
        size = elements * 4
        assert stats["paths"]["bounce"]["sent_tensors"] == 3
        assert stats["paths"]["bounce"]["sent_bytes"] == 3 * size
        assert small_arena.stats(0)["paths"]["bounce"]["received_bytes"] == 3 * size
        assert stats["paths"]["dynamic"]["sent_tensors"] == 0
        assert stats["paths"]["rpc"]["sent_tensors"] == 0
        assert stats["rpc_reasons"] == {}


def test_memory_of_others_is_copied_into_the_arena() -> None:
    done = subprocess.run(
        [warm.python(), Path(__file__).with_name("foreign_memory.py")],
        env=os.environ | {"RDMATENSOR_PLAN": "off"},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["totals"] == [200_000, 600_000]
    sent, received = (result["stats"][task]["paths"] for task in ("chief", "worker"))
    assert (sent["bounce"]["sent_tensors"], sent["bounce"]["sent_bytes"]) == (2, 800_000)
    assert received["bounce"]["received_bytes"] == 800_000
    assert sent["dynamic"]["sent_tensors"] == sent["rpc"]["sent_tensors"] == 0


def test_tensors_larger_than_the_arena_go_by_rpc(small_arena: Cluster, note: Any) -> None:
    elements = (LIMIT + MIB) // 4

    def build() -> Any:
        with tf.device(TASK1):
            start = v1.placeholder(tf.float32, [])
            large = tf.range(elements, dtype=tf.float32) + start
            there = cross(large)
        with tf.device(TASK1):
            # And back: the other server's arena is as small.
            back = tf.reduce_max(there + 1)
        return start, there, back

    with session(small_arena, build) as opened:
        start, there, back = opened.built
        for step in range(3):
            content, largest = opened.run([there, back], {start: step})
            np.testing.assert_array_equal(content, np.arange(elements, dtype="f") + step)
            assert largest == elements - 1 + step + 1
    for index in (0, 1):
        stats = small_arena.stats(index)
        assert stats["rpc_reasons"] == {"arena full": 3}
        assert stats["paths"]["rpc"]["sent_tensors"] == 3
        assert stats["paths"]["rpc"]["sent_bytes"] == 3 * elements * 4
        assert stats["paths"]["rpc"]["received_bytes"] == 3 * elements * 4
        assert stats["arena"]["limit_bytes"] == LIMIT
        assert stats["arena"]["exhausted_allocations"] >= 3
        warnings = [x for x in small_arena.log(index).splitlines() if "rdmatensor: WARN" in x]
        assert len(warnings) == 1, warnings
        assert "arena" in warnings[0]
        assert "RDMATENSOR_ARENA_LIMIT" in warnings[0]
    note(
        "arena full",
        warnings[0].partition("rdmatensor: ")[2],
        None,
        "all tensors, some of them by RPC",
    )
