# SPDX-License-Identifier: Apache-2.0
"""RDMATENSOR_PLACEMENT=traced: only memory for what is sent is registered."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from support.clusters import STEP_S, Cluster
from support.graphs import TASK1, cross, session, v1

MIB = 1 << 20
ELEMENTS = MIB
BYTES = 4 * ELEMENTS
LOCAL_TENSORS = 40


def start(placement: str, folder: Path, **more: str) -> Cluster:
    # Without a plan, whether a tensor had to be copied is seen from the path it took.
    settings = {"RDMATENSOR_PLACEMENT": placement, "RDMATENSOR_PLAN": "off"} | more
    return Cluster.pair(folder, settings)


@pytest.fixture(scope="module")
def shared_traced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = start("traced", tmp_path_factory.mktemp("traced"))
    yield cluster
    cluster.close()


@pytest.fixture
def traced(shared_traced: Cluster) -> Cluster:
    shared_traced.reset_stats()
    return shared_traced


def copied(cluster: Cluster) -> tuple[int, int]:
    """Tensors that worker 1 sent since the counters were reset: copied, and not copied."""
    paths = cluster.stats(1)["paths"]
    return paths["bounce"]["sent_tensors"], paths["dynamic"]["sent_tensors"]


def variable(name: str, elements: int) -> tuple[Any, Any, Any]:
    """A variable on worker 1, an operation that fills it with the value of a placeholder, and that."""
    handle = tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=[elements], shared_name=name)
    value = v1.placeholder(tf.float32, [])
    fill = tf.raw_ops.AssignVariableOp(resource=handle, value=tf.fill([elements], value))
    return handle, fill, value


def many_local_tensors() -> tuple[Any, Any, Any]:
    """Of many tensors that are alive together on worker 1, one is sent."""
    with tf.device(TASK1):
        value = v1.placeholder(tf.float32, [])
        total = tf.add_n([tf.fill([ELEMENTS], value + i) for i in range(LOCAL_TENSORS)])
        with tf.control_dependencies([total]):
            sent = tf.fill([ELEMENTS], value) * 2.0
        first = total[0]
    return value, cross(sent), cross(first)


def run_many(cluster: Cluster, steps: int) -> Any:
    """The statistics of worker 1 after some steps, whose results are checked."""
    with session(cluster, many_local_tensors) as opened:
        value, sent, total = opened.built
        cluster.reset_stats()
        for step in range(steps):
            received, summed = opened.run([sent, total], {value: step})
            np.testing.assert_array_equal(received, np.full(ELEMENTS, 2.0 * step, "f"))
            assert summed == sum(step + i for i in range(LOCAL_TENSORS))
    return cluster.stats(1)


def test_only_what_is_sent_lies_in_the_arena(traced: Cluster, tmp_path: Path) -> None:
    steps = 5
    whole = start("arena", tmp_path)
    try:
        all_in_arena = run_many(whole, steps)
    finally:
        whole.close()
    precise = run_many(traced, steps)

    assert all_in_arena["paths"]["bounce"]["sent_tensors"] == 0
    assert all_in_arena["placement"]["mode"] == "arena"
    assert all_in_arena["placement"]["plain_bytes"] == 0
    assert all_in_arena["arena"]["peak_bytes"] >= LOCAL_TENSORS * BYTES

    # The first step pays the copy from which the site is learned.
    assert copied(traced) == (1, steps - 1)
    assert precise["placement"]["mode"] == "traced"
    assert precise["placement"]["traced_sites"] > LOCAL_TENSORS
    assert 1 <= precise["placement"]["marked_sites"] < LOCAL_TENSORS
    assert precise["placement"]["arena_allocations"] == steps - 1
    assert precise["placement"]["arena_bytes"] == (steps - 1) * BYTES
    assert precise["placement"]["plain_bytes"] >= steps * LOCAL_TENSORS * BYTES
    assert precise["arena"]["peak_bytes"] <= 3 * BYTES
    assert precise["arena"]["reserved_bytes"] < all_in_arena["arena"]["reserved_bytes"]


def test_a_site_is_learned_once_for_similar_sizes(traced: Cluster) -> None:
    """A batch that is never the same does not mean a copy for each of its sizes."""

    def build() -> Any:
        with tf.device(TASK1):
            size = v1.placeholder(tf.int32, [])
            sent = tf.fill(tf.stack([size]), 3.0, name="of_changing_size")
        return size, cross(sent)

    sizes = [300_000, 310_000, 400_000, 270_000, 500_000]
    with session(traced, build) as opened:
        size, received = opened.built
        for each in sizes:
            np.testing.assert_array_equal(opened.run(received, {size: each}), np.full(each, 3.0))
    assert copied(traced) == (1, len(sizes) - 1)


def test_variables_that_are_updated_move_into_the_arena(traced: Cluster) -> None:
    """They were allocated before anybody knew that they would be sent."""

    def build() -> Any:
        with tf.device(TASK1):
            handle, fill, value = variable("moving", ELEMENTS)
            read = tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.float32)
        received = cross(read)
        with tf.device(TASK1), tf.control_dependencies([received]):
            update = tf.raw_ops.AssignAddVariableOp(resource=handle, value=tf.ones([ELEMENTS]))
        return fill, value, received, update

    with session(traced, build) as opened:
        fill, value, received, update = opened.built
        opened.run(fill, {value: 0.0})

        def step(number: int) -> None:
            result = opened.run([received, update])[0]
            np.testing.assert_array_equal(result, np.full(ELEMENTS, number, "f"))

        # Two copies teach the site of the first memory, and that it stays; two more the same of the
        # memory that the update asks for.
        for number in range(4):
            step(number)
        assert traced.stats(1)["placement"]["late_sends"] >= 1
        traced.reset_stats()
        for number in range(4, 8):
            step(number)
    assert copied(traced) == (0, 4)


def test_constants_are_copied_whenever_they_are_sent(traced: Cluster) -> None:
    """They are never allocated anew. The counters say so."""
    values = np.arange(ELEMENTS + 1, dtype="f")

    def build() -> Any:
        with tf.device(TASK1):
            constant = tf.constant(values)
        return cross(constant)

    with session(traced, build) as opened:
        for _ in range(4):
            np.testing.assert_array_equal(opened.run(opened.built), values)
    assert copied(traced) == (4, 0)
    assert traced.stats(1)["placement"]["late_sends"] == 3
    assert traced.stats(1)["placement"]["unknown_sends"] == 0


def resident(pid: int) -> int:
    """Bytes of memory that a process has."""
    pages = Path(f"/proc/{pid}/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


@pytest.fixture
def giving_back(tmp_path: Path) -> Iterator[Cluster]:
    """Without oneDNN, whose allocator keeps what is freed: so the process's size tells."""
    cluster = start("traced", tmp_path, TF_ENABLE_ONEDNN_OPTS="0")
    yield cluster
    cluster.close()


def test_a_held_variable_is_freed_with_its_last_owner(giving_back: Cluster) -> None:
    """What is held so that it moves must not outlive what it belongs to."""
    size = 96 * MIB

    def build() -> Any:
        with tf.device(TASK1):
            handle, fill, value = variable("held", size // 4)
            read = tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.float32)
            destroy = tf.raw_ops.DestroyResourceOp(resource=handle)
            other = tf.fill([ELEMENTS], value)
        return fill, value, cross(read), destroy, cross(other)

    pid = giving_back.tasks[1].ask("pid")
    with session(giving_back, build) as opened:
        fill, value, received, destroy, other = opened.built
        opened.run(fill, {value: 1.0})
        for _ in range(2):
            assert opened.run(received).sum() == size // 4
        before = resident(pid)
        opened.run(destroy)
        end = time.monotonic() + STEP_S
        while resident(pid) > before - size * 3 // 4:
            assert time.monotonic() < end, "the variable's memory was not freed"
            opened.run(other, {value: 2.0})
            time.sleep(0.05)
