# SPDX-License-Identifier: Apache-2.0
"""Steps that cannot finish end with the error that TensorFlow users expect, in time, and the next
step works."""

from __future__ import annotations

import itertools
import os
import re
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import rdmatensor
from plugin import hostile
from support.clusters import STEP_S, Cluster, within
from support.graphs import TASK0, TASK1, abandon, config, cross, session, v1
from support.waits import until

errors = tf.errors
_numbers = itertools.count()


def _raises_within(seconds: float, expected: Any, step: Callable[[], Any]) -> float:
    """Seconds until `step` raised `expected`."""
    start = time.monotonic()
    with pytest.raises(expected):
        within(seconds, step)
    return time.monotonic() - start


def _queue_graph() -> Any:
    """A step that waits on worker 1 until somebody feeds the queue, and sends to worker 0."""
    with tf.device(TASK1):
        queue, begun = (v1.FIFOQueue(10, [tf.float32], shapes=[[]]) for _ in range(2))
        with tf.control_dependencies([begun.enqueue(1.0)]):
            item = queue.dequeue()
        plain = tf.random.normal([100])
    with tf.device(TASK0):
        result = item + 1 + 0 * tf.reduce_sum(plain)
    return queue.enqueue(1.0), result, begun.size()


def test_step_times_out_and_the_next_one_works(cluster: Cluster) -> None:
    with session(cluster, _queue_graph) as opened:
        fill, result, _ = opened.built
        options = v1.RunOptions(timeout_in_ms=500)
        took = _raises_within(
            STEP_S, errors.DeadlineExceededError, lambda: opened.raw.run(result, options=options)
        )
        assert took < 10
        for _ in range(3):
            opened.run(fill)
            assert opened.run(result) == 2.0


def test_session_closed_during_a_step(cluster: Cluster) -> None:
    with session(cluster, _queue_graph) as opened:
        _, result, begun = opened.built
        ended: list[Exception] = []

        def step() -> None:
            try:
                opened.raw.run(result)
            except Exception as error:
                ended.append(error)

        runner = threading.Thread(target=step, daemon=True)
        runner.start()
        until("the step does not begin", lambda: opened.run(begun) > 0)
        within(STEP_S, opened.raw.close)
        runner.join(STEP_S)
        assert not runner.is_alive()
        assert isinstance(ended[0], errors.CancelledError | errors.AbortedError)


def test_failing_sender_fails_the_step_at_once(cluster: Cluster) -> None:
    def build() -> Any:
        with tf.device(TASK1):
            x = v1.placeholder(tf.float32, [])
            with tf.control_dependencies([v1.assert_positive(x)]):
                y = tf.identity(x)
        return x, cross(y)

    with session(cluster, build) as opened:
        x, y = opened.built
        took = _raises_within(
            STEP_S, errors.InvalidArgumentError, lambda: opened.raw.run(y, {x: -1.0})
        )
        assert took < 5
        assert opened.run(y, {x: 3.0}) == 3.0


class _Receiver:
    """A receiver that announces a name of its own to a task, and waits for what it is told."""

    def __init__(self, cluster: Cluster, task: int, session: str) -> None:
        self._device = rdmatensor.Device()
        name = b"/job:receiver/replica:0/task:%d" % next(_numbers)
        immediate, payload = hostile.ready(name, session=session.encode())
        address = hostile.device_address(cluster.tasks[task].ask("pid"))
        self._device.connect(address, timeout=10).notify(payload, immediate)

    def failure(self, timeout_s: float = STEP_S) -> bytes:
        """The next failed step that it is told of."""
        while True:
            told = self._device.next_notification(timeout_s)
            if told.immediate & 0xFF == hostile.ABORT:
                return told.payload

    def __enter__(self) -> _Receiver:
        return self

    def __exit__(self, *_: object) -> None:
        self._device.close()


def test_receiver_that_comes_after_the_failure_is_told(tmp_path: Path) -> None:
    """A part fails at worker 1 while the step goes on at worker 0, and a receiver announces itself then."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    def build() -> Any:
        with tf.device(TASK1):
            x = v1.placeholder(tf.float32, [])
            with tf.control_dependencies([v1.assert_positive(x, message="not today")]):
                y = tf.identity(x)
        with tf.device(TASK0):
            # Cancelling does not end it: open() waits for a writer.
            return x, cross(y), tf.io.read_file(str(pipe))

    # The master's log names its session.
    logs = {"TF_CPP_VMODULE": "master_session=1", "TF_CPP_MIN_LOG_LEVEL": "0"}
    cluster = Cluster(["grpc+rdma"] * 2, tmp_path, {0: logs})
    try:
        with session(cluster, build) as opened:
            x, y, read = opened.built
            (name,) = re.findall(r"Start master session (\w+)", cluster.log(0))
            ended: list[Exception] = []

            def step() -> None:
                try:
                    opened.raw.run([y, read], {x: -1.0})
                except errors.InvalidArgumentError as error:
                    ended.append(error)

            runner = threading.Thread(target=step, daemon=True)
            with _Receiver(cluster, 1, name) as early:
                runner.start()
                try:
                    assert b"not today" in early.failure()
                    with _Receiver(cluster, 1, name) as late:
                        assert b"not today" in late.failure()
                finally:
                    writer = os.open(pipe, os.O_RDWR)  # does not wait for a reader
                    runner.join(STEP_S)
                    os.close(writer)
            assert ended

            def nobody_is_told() -> bool:
                with _Receiver(cluster, 1, name) as after, suppress(rdmatensor.DeadlineExceeded):
                    return not after.failure(0.3)
                return True

            until("the failure is remembered after the step", nobody_is_told)
    finally:
        cluster.close()


def test_killed_worker_and_its_successor(own_cluster: Cluster, note: Any) -> None:
    """Worker 1 dies during a step; worker 0 goes on, without restart, with its successor."""
    opened = v1.Session(own_cluster.target, graph=tf.Graph(), config=config())
    with opened.graph.as_default():
        with tf.device(TASK1):
            started = v1.placeholder(tf.float32, [])
            large = tf.fill([1 << 20], started)
        arrived = cross(large)
        with tf.device(TASK1):
            # Never fed: the step waits here when the worker is killed.
            never = v1.FIFOQueue(1, [tf.float32], shapes=[[]]).dequeue()
        with tf.device(TASK0):
            begun = v1.FIFOQueue(1, [tf.float32], shapes=[[]])
            with tf.control_dependencies([begun.enqueue(arrived[0])]):
                hang = cross(never) + tf.reduce_sum(arrived)
            has_begun = begun.size()
    assert within(STEP_S, lambda: opened.run(arrived, {started: 2.0}))[5] == 2.0
    ended: list[Any] = []

    def step() -> None:
        try:
            opened.run(hang, {started: 1.0})
        except Exception as error:
            ended.append(error)

    runner = threading.Thread(target=step, daemon=True)
    runner.start()
    until("the step does not begin", lambda: within(STEP_S, lambda: opened.run(has_begun)) > 0)
    assert runner.is_alive()
    # Values that a session still holds may lie in the dead worker's memory.
    start = time.monotonic()
    own_cluster.tasks[1].kill()
    runner.join(20)
    assert not runner.is_alive(), "the step hangs after its peer was killed"
    assert isinstance(ended[0], errors.UnavailableError | errors.AbortedError), ended[0]
    # ClusterCoordinator looks for these words. The tensor may be missed first, or the call.
    assert "GRPC error information from remote target /job:worker/replica:0/task:1" in str(ended[0])
    took = time.monotonic() - start
    assert took < 12
    note("process killed", type(ended[0]).__name__, took, "the other tasks' servers")

    def told() -> bool:
        receiving = [p for p in own_cluster.stats(0)["peers"] if p["direction"] == "receive"]
        return "is lost: " in receiving[0]["why"] and "closed the connection" in receiving[0]["why"]

    until("the survivor tells why it lost the worker", told)
    abandon(opened)

    before = own_cluster.tasks[0].ask("pid")
    own_cluster.restart(1)

    def build() -> Any:
        with tf.device(TASK1):
            x = v1.placeholder(tf.float32, [None])
            double, total = x * 2, tf.reduce_sum(x)
        return x, cross(double), cross(total)

    with session(own_cluster, build) as again:
        x, double, total = again.built
        content = np.ones(100_000, "f")
        for _ in range(3):
            doubled, summed = again.run([double, total], {x: content})
            np.testing.assert_array_equal(doubled, content * 2)
            assert summed == 100_000
    assert own_cluster.tasks[0].ask("pid") == before
    paths = own_cluster.stats(1)["paths"]
    assert paths["rpc"]["sent_tensors"] == 0
    assert sum(counters["sent_tensors"] for counters in paths.values()) >= 6
    note(
        "peer restarted", "nothing: a new session works", None, "the other task, without a restart"
    )


def test_peer_with_stock_grpc(tmp_path: Path) -> None:
    """Worker 1 has no grpc+rdma: with policy auto tensors go by RPC in both directions, with one
    warning; with policy rdma the step fails."""
    protocols = ["grpc+rdma", "grpc", "grpc+rdma"]
    cluster = Cluster(protocols, tmp_path, {2: {"RDMATENSOR_POLICY": "rdma"}})

    def build() -> Any:
        with tf.device(TASK0):
            x = v1.placeholder(tf.float32, [None])
            there = x + 1
        with tf.device(TASK1):
            words = tf.strings.as_string(tf.shape(there))
            back = there * 2
        with tf.device("/job:worker/task:2"):
            strict = tf.identity(back)
        return x, cross(back), cross(words), strict

    try:
        with session(cluster, build) as opened:
            x, back, words, strict = opened.built
            for size in (1, 100_000, 3):
                content = np.arange(size, dtype="f")
                result, text = opened.run([back, words], {x: content})
                np.testing.assert_array_equal(result, (content + 1) * 2)
                assert list(text) == [str(size).encode()]
            _raises_within(
                STEP_S, errors.FailedPreconditionError, lambda: opened.raw.run(strict, {x: [1.0]})
            )
        stats = cluster.stats(0)
        (peer,) = [
            p
            for p in stats["peers"]
            if p["direction"] == "receive" and p["task"].endswith("task:1")
        ]
        assert peer["transport"] == "grpc"
        assert "grpc+rdma" in peer["why"]
        sent = stats["paths"]["rpc"]["sent_tensors"]
        assert sent in (3, 4)  # the failed step may have got so far
        assert stats["paths"]["rpc"]["received_tensors"] == 6
        assert stats["rpc_reasons"] == {"fetched by the receiver": sent}
        warnings = [line for line in cluster.log(0).splitlines() if "rdmatensor: WARN" in line]
        assert len(warnings) == 1, warnings
    finally:
        cluster.close()
