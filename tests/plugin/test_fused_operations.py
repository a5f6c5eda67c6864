# SPDX-License-Identifier: Apache-2.0
"""One operation sends several tensors, and one receives them: the values, the steps that fail, and what stays
single."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from plugin.planned import PLANNED, UNPLANNED, events, sent, some_number, warm_up
from support import WHOLE
from support.clusters import STEP_S, Cluster
from support.graphs import TASK0, TASK1, Session, abandon, cross, session, v1
from support.waits import until

# Elements of float32.
MIXED = [1, 100, 1024, 3000, 4096, 16_000] * 5 + [100_000] * 3
SIZES = {"100 of 4 KB": [1024] * 100, "mixed": MIXED}
SIZES |= {"1000 of 1 KB": [256] * 1000} if WHOLE else {}
LARGEST_FUSED = 16_384


def _both_ways(sizes: list[int]) -> Any:
    """Tensors go to task 0 together, and what is made of them comes back together."""
    with tf.device(TASK1):
        x = some_number()
        there = [tf.fill([size], x + i) for i, size in enumerate(sizes)]
    with tf.device(TASK0):
        doubled = [each * 2 for each in there]
    with tf.device(TASK1):
        back = [each + 1 for each in doubled]
        results = tf.stack([tf.reduce_min(each) for each in back])
        highest = tf.stack([tf.reduce_max(each) for each in back])
    return x, [cross(results), cross(highest)]


def _check(opened: Session, sizes: list[int], count: int = 1) -> None:
    for _ in range(count):
        x, results = opened.run(opened.built)
        for result in results:
            np.testing.assert_array_equal(result, 2 * (x + np.arange(len(sizes))) + 1)


@pytest.fixture(scope="module")
def grpc_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(["grpc", "grpc"], tmp_path_factory.mktemp("grpc"))
    yield cluster
    cluster.close()


def test_values_over_grpc(grpc_cluster: Cluster) -> None:
    with session(grpc_cluster, lambda: _both_ways(MIXED)) as opened:
        _check(opened, MIXED, 2)


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_values_and_operations(cluster: Cluster, sizes: list[int]) -> None:
    fused = sum(size <= LARGEST_FUSED for size in sizes)
    with session(cluster, lambda: _both_ways(sizes)) as opened:
        warm_up(cluster, lambda: _check(opened, sizes))
        _check(opened, sizes, 20)
        assert sent(cluster, *UNPLANNED) == 0
        # Both ways, and at both ends; and two results.
        assert events(cluster, "in_operations") == 20 * (4 * fused + 4)
        at_once = -(-sum(-(-4 * n // 64) * 64 for n in sizes if n <= LARGEST_FUSED) // (1 << 20))
        assert events(cluster, "operations") <= 20 * (4 * at_once + 4)


def _operations(opened: Session, fetches: Any) -> list[str]:
    """The names of the operations that a step runs."""
    metadata = v1.RunMetadata()
    options = v1.RunOptions(trace_level=v1.RunOptions.FULL_TRACE)
    opened.raw.run(fetches, options=options, run_metadata=metadata)
    devices = metadata.step_stats.dev_stats
    return [node.node_name for device in devices for node in device.node_stats]


def test_executors_run_two_operations_for_a_hundred_tensors(cluster: Cluster) -> None:
    """As TensorFlow's own trace of a step counts them."""

    def build() -> Any:
        with tf.device(TASK1):
            x = some_number()
            return [cross(tf.fill([100], x + i)) for i in range(100)]

    with session(cluster, build) as opened:
        warm_up(cluster, lambda: opened.run(opened.built))
        ran = _operations(opened, opened.built)
        assert sum("rdmatensor/RdmaSend" in name for name in ran) == 1
        assert sum("rdmatensor/RdmaReceive" in name for name in ran) == 1
        assert sum("rdmatensor/RdmaUnpack" in name for name in ran) == 1
        # Of the others, there are those that carry the fetched values to the client.
        edges = [edge for edge in cluster.tasks[0].ask("plan")["edges"] if edge["name"] in ran]
        assert not edges


def test_the_plan_tells_what_shares_operations(cluster: Cluster) -> None:
    def build() -> Any:
        with tf.device(TASK1):
            x = some_number()
            fed = v1.placeholder(tf.float32, [10])
            small = [cross(tf.fill([10], x + i)) for i in range(3)]
            large = cross(tf.fill([100_000], x))
            waits = [cross(fed + i) for i in range(2)]
        return fed, [small, large, waits]

    with session(cluster, build) as opened:
        fed, fetches = opened.built
        opened.run(fetches, {fed: np.zeros(10)})

        def edges() -> list[Any]:
            graphs = cluster.tasks[0].ask("plan")["edges"]
            newest = {edge["graph"] for edge in graphs if edge["shape"] == [100_000]}
            return [edge for edge in graphs if edge["graph"] in newest]

        until("the graph is planned", lambda: len(edges()) == 6)
        found = sorted(
            (edge["operation"], edge["alone"]) for edge in edges() if edge["operation"] is not None
        )
        assert found == [(0, "")] * 3
        alone = sorted(edge["alone"] for edge in edges() if edge["operation"] is None)
        assert alone[0].startswith("it depends on a feed") and alone[1] == alone[0]
        assert "larger than 64 KiB" in alone[2]


def test_fetches_that_leave_members_out(cluster: Cluster) -> None:
    """TensorFlow prunes the graph for what is fetched, and the rest shares an operation."""

    def build() -> Any:
        with tf.device(TASK1):
            x = some_number()
            return x, [cross(tf.fill([50], x + i)) for i in range(12)]

    with session(cluster, build) as opened:
        x, tensors = opened.built
        for chosen in (range(12), [0, 5], [7], [1, 2, 3, 11]):

            def step(chosen: Any = chosen) -> None:
                value, results = opened.run([x, [tensors[i] for i in chosen]])
                for i, result in zip(chosen, results, strict=True):
                    np.testing.assert_array_equal(result, np.full(50, value + i, "f"))

            warm_up(cluster, step)
            step()
            # At the sender and at the receiver; a single tensor has operations of its own.
            assert events(cluster, "in_operations") == (2 * len(chosen) if len(chosen) > 1 else 0)


def test_partial_runs(cluster: Cluster) -> None:
    """A tensor that can be made before another one is fed does not wait for it."""

    def build() -> Any:
        with tf.device(TASK1):
            a, b = v1.placeholder(tf.float32, [4]), v1.placeholder(tf.float32, [4])
            return a, b, [cross(a * 2), cross(b * 3)]

    with session(cluster, build) as opened:
        a, b, (doubled, tripled) = opened.built
        for _ in range(3):
            handle = opened.raw.partial_run_setup([doubled, tripled], [a, b])
            for fetched, given, factor in ((doubled, a, 2), (tripled, b, 3)):
                result: list[Any] = []
                thread = threading.Thread(
                    target=lambda h=handle, f=fetched, g=given, r=result: r.append(
                        opened.raw.partial_run(h, f, {g: np.ones(4)})
                    ),
                    daemon=True,
                )
                thread.start()
                thread.join(STEP_S)
                assert result, "it waits for the other feed"
                np.testing.assert_array_equal(result[0], np.full(4, factor, "f"))


def _behind_condition() -> Any:
    with tf.device(TASK1):
        x = some_number()
        chosen = [
            tf.cond(x < 500, lambda i=i: tf.fill([10], x + i), lambda i=i: tf.fill([10], -x - i))
            for i in range(4)
        ]
        sure = [tf.fill([10], x * 2 + i) for i in range(4)]
        left, right = tf.raw_ops.Switch(data=tf.fill([10], x), pred=x < 500)
    with tf.device(TASK0):
        sides = [left + 1, right + 2, left + 3, right + 4]
        merged = [
            tf.raw_ops.Merge(inputs=sides[:2]).output,
            tf.raw_ops.Merge(inputs=sides[2:]).output,
        ]
    return x, [cross(each) for each in chosen], [cross(each) for each in sure], merged


def test_tensors_without_a_value(cluster: Cluster) -> None:
    """Where a tensor may have no value in a step, it has operations of its own, which pass that on."""
    with session(cluster, _behind_condition) as opened:
        seen = set()
        for _ in range(40):
            x, chosen, sure, merged = opened.run(opened.built)
            seen.add(x < 500)
            for i, each in enumerate(chosen):
                np.testing.assert_array_equal(each, np.full(10, x + i if x < 500 else -x - i, "f"))
            for i, each in enumerate(sure):
                np.testing.assert_array_equal(each, np.full(10, x * 2 + i, "f"))
            for each, more in zip(merged, (1, 3) if x >= 500 else (2, 4), strict=True):
                np.testing.assert_array_equal(each, np.full(10, x + more, "f"))
        assert seen == {True, False}
        assert events(cluster, "in_operations") > 0


def test_two_sessions_at_once(cluster: Cluster) -> None:
    sizes = [100] * 40
    build: Callable[[], Any] = lambda: _both_ways(sizes)  # noqa: E731
    with session(cluster, build) as one, session(cluster, build) as two:
        failures: list[BaseException] = []

        def run(opened: Session) -> None:
            try:
                _check(opened, sizes, 30)
            except BaseException as error:
                failures.append(error)

        threads = [
            threading.Thread(target=run, args=(opened,), daemon=True) for opened in (one, two) * 3
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(3 * STEP_S)
        assert not any(thread.is_alive() for thread in threads), "steps hang"
        assert not failures, failures[0]
        warm_up(cluster, lambda: _check(one, sizes))
        _check(one, sizes, 5)
        assert sent(cluster, *UNPLANNED) == 0 == events(cluster, "busy")


def test_failing_member(cluster: Cluster) -> None:
    """If one of the tensors cannot be made, the step fails with that error, and the next one works."""

    def build() -> Any:
        with tf.device(TASK1):
            x = some_number()
            fails = v1.get_variable("fails", initializer=0, use_resource=True)
            set_it = [fails.assign(value, read_value=False) for value in (0, 1)]
            divisor = 1 - fails.read_value()
            bad = tf.cast(7 // divisor, tf.float32)
            members = [tf.fill([10], x + i) for i in range(5)] + [tf.fill([10], bad)]
        return set_it, [cross(each) for each in members]

    with session(cluster, build) as opened:
        (heal, break_it), fetches = opened.built
        warm_up(cluster, lambda: opened.run(fetches))
        for _ in range(3):
            opened.run(break_it)
            with pytest.raises(tf.errors.InvalidArgumentError, match=r"[Dd]ivision by zero"):
                opened.run(fetches)
            opened.run(heal)
            np.testing.assert_array_equal(opened.run(fetches)[5], np.full(10, 7, "f"))
        warm_up(cluster, lambda: opened.run(fetches))


def test_cancelled_step(cluster: Cluster) -> None:
    """A step that waits for an operation that receives several tensors ends when its time is up."""

    def build() -> Any:
        with tf.device(TASK1):
            queue = v1.FIFOQueue(10, [tf.float32], [[]])
            fill = queue.enqueue(3.0)
            x = some_number()
            there = [cross(tf.fill([10], x + i)) for i in range(5)]
        with tf.device(TASK0):
            item = cross(queue.dequeue())
        with tf.device(TASK1):
            # Both wait for the item, but nothing proves that they wait together.
            more = [cross(tf.fill([10], item + i)) for i in range(5)]
        return fill, there, more

    with session(cluster, build) as opened:
        fill, there, more = opened.built
        for _ in range(3):
            with pytest.raises((tf.errors.DeadlineExceededError, tf.errors.CancelledError)):
                opened.raw.run([there, more], options=v1.RunOptions(timeout_in_ms=500))
            results = opened.run_filling(fill, [there, more])
            np.testing.assert_array_equal(results[0][1][4], np.full(10, 7, "f"))


def test_killed_sender(own_cluster: Cluster) -> None:
    """A receive of several tensors ends with the error of a lost peer, and goes on with its successor."""

    def build() -> Any:
        with tf.device(TASK1):
            x = some_number()
            return [cross(tf.fill([100], x + i)) for i in range(50)]

    opened = Session(own_cluster, build)
    try:
        warm_up(own_cluster, lambda: opened.run(opened.built))
        stop = threading.Event()
        failures: list[BaseException] = []

        def steps() -> None:
            while not stop.is_set():
                try:
                    opened.run(opened.built)
                except tf.errors.OpError as error:
                    failures.append(error)
                    return

        threads = [threading.Thread(target=steps, daemon=True) for _ in range(3)]
        for thread in threads:
            thread.start()
        own_cluster.tasks[1].kill()
        for thread in threads:
            thread.join(2 * STEP_S)
        stop.set()
        assert not any(thread.is_alive() for thread in threads), "a step hangs"
        # Steps that the loss has ended may report that they were aborted for it.
        assert any(isinstance(error, tf.errors.UnavailableError) for error in failures), failures
        kinds = (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.CancelledError)
        assert all(isinstance(error, kinds) for error in failures), failures
    finally:
        abandon(opened.raw)
    own_cluster.restart(1)
    with session(own_cluster, build) as opened:
        opened.run(opened.built)


OTHER_ENDS = {
    "without a plan": ("grpc+rdma", {"RDMATENSOR_PLAN": "off"}),
    "stock": ("grpc", {}),
    "no transport": ("grpc+rdma", {"RDMATENSOR_POLICY": "grpc"}),
}


@pytest.mark.parametrize("other", OTHER_ENDS.values(), ids=OTHER_ENDS)
def test_other_end_with_single_operations(
    tmp_path: Path, other: tuple[str, dict[str, str]]
) -> None:
    """Nobody has to agree: what one operation sends may be received one by one, and the reverse."""
    protocol, settings = other
    cluster = Cluster(["grpc+rdma", protocol], tmp_path, {1: settings})
    try:
        sizes = [10, 1000, 5000] * 5
        with session(cluster, lambda: _both_ways(sizes)) as opened:
            _check(opened, sizes, 10)
        if protocol == "grpc+rdma":
            assert sent(cluster, *PLANNED) == 0
        assert cluster.stats(0)["plan"]["in_operations"] == 10 * (2 * len(sizes) + 2)
    finally:
        cluster.close()
