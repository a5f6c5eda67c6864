# SPDX-License-Identifier: Apache-2.0
"""Memory that was lent to a receiver comes home: after steps, failed steps, and a dead receiver."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from plugin.transports import needs_shm
from support.clusters import EVERY_WAY, STEP_S, Cluster, within
from support.graphs import TASK0, TASK1, Session, abandon, cross, session, v1
from support.waits import PATIENCE, stays, until

ELEMENTS = 1 << 20
BYTES = ELEMENTS * 4


def _used(cluster: Cluster, index: int) -> int:
    return int(cluster.stats(index)["arena"]["used_bytes"])


def _comes_home(cluster: Cluster, index: int, baseline: int) -> None:
    """Waits until a task's arena is used as much as before: a release is a message of its own."""
    until("memory is still lent", lambda: _used(cluster, index) <= baseline)


def _lent_during(cluster: Cluster, index: int, baseline: int) -> None:
    """Waits until a tensor of the step that is under way has been lent."""
    until("nothing was lent", lambda: _used(cluster, index) >= baseline + BYTES)


@pytest.fixture(params=["off", "on"], ids=["dynamic", "planned"])
def lending_cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster]:
    """The receiver uses tensors in the sender's memory, whatever the environment says."""
    settings = {"RDMATENSOR_TEST_ALIAS_BYTES": "0", "RDMATENSOR_PLAN": request.param}
    cluster = Cluster.pair(tmp_path, settings)
    yield cluster
    cluster.close()


@EVERY_WAY
def test_after_steps(cluster: Cluster) -> None:
    def build() -> Any:
        with tf.device(TASK1):
            value = v1.placeholder(tf.float32, [])
            several = [tf.fill([ELEMENTS], value + i) for i in range(4)]
        return value, [tf.reduce_max(cross(each)) for each in several]

    with session(cluster, build) as opened:
        value, largest = opened.built
        baseline = _used(cluster, 1)
        cluster.reset_stats()
        for step in range(25):
            assert opened.run(largest, {value: step}) == [step, step + 1, step + 2, step + 3]
        _comes_home(cluster, 1, baseline)
        paths = cluster.stats(1)["paths"]
        assert paths["dynamic"]["sent_tensors"] + paths["static"]["sent_tensors"] == 100
        assert (paths["static"]["sent_tensors"] > 50) == cluster.plans


@EVERY_WAY
def test_after_steps_that_time_out(cluster: Cluster) -> None:
    """Those that wait for a queue hold what they received; others end at any moment."""

    def build() -> Any:
        with tf.device(TASK1):
            value = v1.placeholder(tf.float32, [])
            large = tf.fill([ELEMENTS], value)
        with tf.device(TASK0):
            queue = v1.FIFOQueue(10, [tf.float32], shapes=[[]])
            return value, queue.enqueue(1.0), queue.dequeue() + large

    with session(cluster, build) as opened:
        value, fill, result = opened.built
        baseline = _used(cluster, 1)
        for timeout_ms in [1000, *range(1, 40, 2)]:
            options = v1.RunOptions(timeout_in_ms=timeout_ms)
            with pytest.raises(tf.errors.DeadlineExceededError):
                within(STEP_S, lambda o=options: opened.raw.run(result, {value: 1.0}, options=o))
        # On a busy machine a step can end before it begins at a task, which TensorFlow does not tell again.
        # It waits for the queue with what it received: an element for each lets them go.
        end = time.monotonic() + PATIENCE
        while _used(cluster, 1) > baseline and time.monotonic() < end:
            within(STEP_S, lambda: opened.raw.run(fill, options=v1.RunOptions(timeout_in_ms=5000)))
            stays(lambda: _used(cluster, 1) > baseline, 1)
        _comes_home(cluster, 1, baseline)
        (received,) = opened.run_filling(fill, result, {value: 5.0})
        np.testing.assert_array_equal(received, np.full(ELEMENTS, 6.0, "f"))
        _comes_home(cluster, 1, baseline)


@needs_shm
def test_after_the_receiver_was_killed(lending_cluster: Cluster) -> None:
    def build() -> Any:
        with tf.device(TASK0):
            value = v1.placeholder(tf.float32, [])
            large = tf.fill([ELEMENTS], value)
        with tf.device(TASK1):
            received = tf.identity(large)
            # Never fed: the receiver still holds the tensor when it is killed.
            never = v1.FIFOQueue(1, [tf.float32], shapes=[[]]).dequeue()
            return value, tf.reduce_max(received), tf.reduce_max(received + never)

    opened = Session(lending_cluster, build)
    value, largest, hang = opened.built
    assert opened.run(largest, {value: 3.0}) == 3.0
    ended: list[Exception] = []

    def step() -> None:
        try:
            opened.raw.run(hang, {value: 1.0})
        except Exception as error:
            ended.append(error)

    _comes_home(lending_cluster, 0, 0)
    runner = threading.Thread(target=step, daemon=True)
    runner.start()
    _lent_during(lending_cluster, 0, 0)
    assert stays(lambda: _used(lending_cluster, 0) >= BYTES, 0.5), "it is given back too early"
    lending_cluster.tasks[1].kill()
    runner.join(STEP_S)
    assert not runner.is_alive(), "the step hangs after its peer was killed"
    assert isinstance(ended[0], tf.errors.UnavailableError | tf.errors.AbortedError), ended[0]
    _comes_home(lending_cluster, 0, 0)
    abandon(opened.raw)


@EVERY_WAY
def test_slices_are_not_written_in_place(cluster: Cluster) -> None:
    """A slice of a received tensor looks to TensorFlow as if it owned its memory, which is its sender's."""
    # Rows of 64 bytes are aligned: of others TensorFlow copies slices.
    rows, first, width = 20_000, 8, 16

    def build() -> Any:
        with tf.device(TASK1):
            held = v1.get_variable(
                "held", initializer=tf.fill([rows, width], -1.0), use_resource=True
            )
            read = held.read_value()
        with tf.device(TASK0):
            positive = tf.nn.relu(tf.strided_slice(read, [first, 0], [rows, width]))
            kept = v1.get_variable(
                "kept", initializer=tf.zeros([rows - first, width]), use_resource=True
            )
            keep = kept.assign(tf.strided_slice(read, [first, 0], [rows, width]))
            add = kept.scatter_add(tf.IndexedSlices(tf.ones([1, width]), tf.constant([5])))
        return tf.reduce_sum(positive), cross(tf.reduce_sum(held)), keep, add, kept

    with session(cluster, build) as opened:
        positive, sent, keep, add, kept = opened.built
        for _ in range(6):
            assert opened.run([positive, sent]) == [0.0, -1.0 * width * rows]
        baseline = _used(cluster, 1)
        for _ in range(6):
            opened.run(keep.op)
            opened.run(add)
            value = opened.run(kept)
            assert value.sum() == width * (1.0 - (rows - first))
            assert not value[5].any()
        assert opened.run(sent) == -1.0 * width * rows
        _comes_home(cluster, 1, baseline)
