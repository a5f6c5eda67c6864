# SPDX-License-Identifier: Apache-2.0
"""What RDMA devices do and shared memory does not: reads that take their time or fail, memory that
takes long to register or cannot be. faults.c stands between the plugin and the real functions."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from plugin.transports import TRANSPORT
from support.clusters import STEP_S, Cluster, within
from support.graphs import TASK0, TASK1, Session, abandon, cross, session, v1
from support.waits import until

MIB = 1 << 20
ELEMENTS = MIB // 4
READ_MS = 20


@pytest.fixture(scope="module")
def faults(faults_library: Path) -> dict[str, str]:
    """The environment that puts faults.c into a process."""
    # Planned tensors are read only where they are lent: see test_planned_failures.py.
    return {"LD_PRELOAD": str(faults_library), "RDMATENSOR_PLAN": "off"}


@pytest.fixture(scope="module")
def slow(faults: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    settings = faults | {
        "FAULTS_NO_MAP": "1",
        "FAULTS_READ_MS": str(READ_MS),
        "FAULTS_REGISTER_MS": "100",
    }
    protocols = ["grpc+rdma", "grpc+rdma"]
    cluster = Cluster(protocols, tmp_path_factory.mktemp("slow"), {0: settings, 1: settings})
    yield cluster
    cluster.close()


def _large(count: int) -> Any:
    """`count` tensors of 1 MiB on task 1, received on task 0."""
    with tf.device(TASK1):
        value = v1.placeholder(tf.float32, [])
        several = [tf.fill([ELEMENTS], value + i) for i in range(count)]
    return value, [cross(each) for each in several]


def _used(cluster: Cluster, index: int) -> int:
    return int(cluster.stats(index)["arena"]["used_bytes"])


def _comes_home(cluster: Cluster, baselines: tuple[int, int]) -> None:
    """Waits until both arenas are used as much as before."""
    until(
        "memory is still held",
        lambda: all(_used(cluster, index) <= was for index, was in enumerate(baselines)),
    )


def test_many_reads_into_new_regions(slow: Cluster) -> None:
    """150 MiB at once: both arenas grow, and every region is registered before it is used."""
    count = 150
    with session(slow, lambda: _large(count)) as opened:
        value, results = opened.built
        slow.reset_stats()
        for step in (1.0, 1000.0):
            for i, result in enumerate(opened.run(results, {value: step})):
                assert result.shape == (ELEMENTS,)
                assert (result == step + i).all(), i
        received, sent = slow.stats(0), slow.stats(1)
    assert received["fetched"]["read"] == {"tensors": 2 * count, "bytes": 2 * count * MIB}
    assert received["fetched"]["in_place"] == {"tensors": 0, "bytes": 0}
    assert received["transports"][TRANSPORT]["received_bytes"] >= 2 * count * MIB
    assert sent["transports"][TRANSPORT]["sent_bytes"] >= 2 * count * MIB
    assert sent["paths"]["dynamic"]["sent_bytes"] == 2 * count * MIB
    assert received["arena"]["reserved_bytes"] >= count * MIB
    for stats in (received, sent):
        assert stats["arena"]["regions"] >= 2
        assert stats["paths"]["rpc"]["sent_tensors"] == 0


def test_steps_end_while_their_tensors_are_read(slow: Cluster) -> None:
    with session(slow, lambda: _large(4)) as opened:
        value, results = opened.built
        opened.run(results, {value: 1.0})
        baselines = _used(slow, 0), _used(slow, 1)
        timed_out = 0
        for timeout_ms in range(1, READ_MS + 20, 3):
            options = v1.RunOptions(timeout_in_ms=timeout_ms)
            try:
                within(STEP_S, lambda o=options: opened.raw.run(results, {value: 1.0}, options=o))
            except tf.errors.DeadlineExceededError:
                timed_out += 1
        assert timed_out >= READ_MS // 3
        _comes_home(slow, baselines)
        for i, result in enumerate(opened.run(results, {value: 7.0})):
            np.testing.assert_array_equal(result, np.full(ELEMENTS, 7.0 + i, "f"))
        _comes_home(slow, baselines)


def test_sender_dies_while_it_is_read(slow: Cluster) -> None:
    def build() -> Any:
        with tf.device(TASK0):
            count = v1.placeholder(tf.int32, [])

        def body(i: Any, total: Any) -> Any:
            with tf.device(TASK1):
                large = tf.fill([ELEMENTS], total)
            with tf.device(TASK0):
                return i + 1, tf.reduce_max(large) + 1

        with tf.device(TASK0):
            return count, tf.while_loop(lambda i, _: i < count, body, [0, 0.0])[1]

    opened = Session(slow, build)
    count, total = opened.built
    assert opened.run(total, {count: 5}) == 5.0
    baseline = _used(slow, 0)
    ended: list[Exception] = []

    def step() -> None:
        try:
            opened.raw.run(total, {count: 1_000_000})
        except Exception as error:
            ended.append(error)

    runner = threading.Thread(target=step, daemon=True)
    runner.start()
    time.sleep(
        0.5
    )  # it fails in the same way if it has not begun; else it is in a read nearly always
    slow.tasks[1].kill()
    runner.join(STEP_S)
    assert not runner.is_alive(), "the step hangs after its peer was killed"
    assert isinstance(ended[0], tf.errors.UnavailableError | tf.errors.AbortedError), ended[0]
    abandon(opened.raw)
    slow.restart(1)
    with session(slow, build) as again:
        count, total = again.built
        assert again.run(total, {count: 3}) == 3.0
        _comes_home(slow, (baseline, _used(slow, 1)))


def test_unregistered_memory_and_a_read_that_fails(faults: dict[str, str], tmp_path: Path) -> None:
    """The sender may register its first region only. Later the receiver cannot read any more."""
    last_read = 6
    cluster = Cluster(
        ["grpc+rdma", "grpc+rdma"],
        tmp_path,
        {
            0: faults
            | {
                "FAULTS_NO_MAP": "1",
                "FAULTS_FAIL_READ": str(last_read),
                "RDMATENSOR_TEST_FAILBACK_MS": "0",
            },
            1: faults | {"FAULTS_REGISTER_LIMIT": str(64 * MIB)},
        },
    )
    large = 40 * MIB // 4

    def build() -> Any:
        with tf.device(TASK1):
            value = v1.placeholder(tf.float32, [])
            first = tf.fill([large], value)
            with tf.control_dependencies([first]):
                second = tf.fill([large], value + 1)
        # Both live until both were received.
        return value, tf.stack([cross(tf.reduce_max(cross(each))) for each in (first, second)])

    try:
        with session(cluster, build) as opened:
            value, results = opened.built
            baseline = cluster.stats(1)["arena"]["used_bytes"]
            for step in (1.0, 2.0):
                np.testing.assert_array_equal(opened.run(results, {value: step}), [step, step + 1])
                # The release is a message of its own: until then the registered region is full.
                until(
                    "the step's tensors are still lent",
                    lambda: cluster.stats(1)["arena"]["used_bytes"] <= baseline,
                )
            sent = cluster.stats(1)
            count = {path: use["sent_tensors"] for path, use in sent["paths"].items()}
            # One of each step finds room in the registered region. In the second step that may be the
            # copy of a tensor that was made in the other region.
            assert count["dynamic"] >= 1, sent
            assert count["dynamic"] + count["bounce"] >= 2, sent
            assert count["bounce"] + count["rpc"] >= 1, sent
            assert set(sent["rpc_reasons"]) <= {"memory not registered", "arena full"}
            warnings = [x for x in cluster.log(1).splitlines() if "rdmatensor: WARN" in x]
            assert len(warnings) == 1, warnings
            assert "the limit of locked memory is reached" in warnings[0]

            with pytest.raises(tf.errors.UnavailableError):
                for _ in range(last_read):
                    opened.run(results, {value: 3.0})
            for step in (4.0, 5.0):
                np.testing.assert_array_equal(opened.run(results, {value: step}), [step, step + 1])
        received = cluster.stats(0)
        (peer,) = [peer for peer in received["peers"] if peer["direction"] == "receive"]
        assert peer["transport"] == "grpc"
        assert "cannot be read: LIMIT" in peer["why"]
        assert received["fetched"]["read"]["tensors"] == last_read - 1
        assert received["paths"]["rpc"]["received_tensors"] >= 4
    finally:
        cluster.close()
