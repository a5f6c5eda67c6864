# SPDX-License-Identifier: Apache-2.0
"""Tensors in the memory of a device, which the host cannot touch and whose copies come late.

pluggable_device.c is that device. A copy that does not wait for it has old bytes, and a look at its memory
ends the process. The same steps run over grpc, and between grpc and grpc+rdma.
"""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from plugin.devices import CPU0, CPU1, DEVICE0, DEVICE1, UNPLANNED, two_devices
from plugin.planned import warm_up
from support import warm
from support.clusters import STEP_S, Cluster
from support.graphs import session, v1
from support.waits import until

LATE_COPIES = {"TEST_DEVICE_COPY_US": "3000"}
LATE = LATE_COPIES | {"TEST_DEVICE_KERNEL_US": "3000"}
CHECKED = {"RDMATENSOR_CHECKSUM": "crc32c"}
READ = {"RDMATENSOR_TEST_ALIAS_BYTES": "1T"}
RDMA, STOCK = "grpc+rdma", "grpc"
# Kernels are late where the receiver is ours. TensorFlow's own receive on pluggable devices does not wait for
# what the device still computes with the memory that it gives to the next tensor: late kernels make it wrong.
WAYS = {
    "grpc": ([STOCK, STOCK], LATE_COPIES),
    "planned": ([RDMA, RDMA], {}),
    "planned_late": ([RDMA, RDMA], LATE | CHECKED),
    "unplanned_late": ([RDMA, RDMA], LATE | UNPLANNED),
    "read_late": ([RDMA, RDMA], LATE | READ),
    "from_grpc": ([RDMA, STOCK], LATE_COPIES),
    "to_grpc": ([STOCK, RDMA], LATE_COPIES),
}
MAIN_WAYS = ("grpc", "planned_late", "unplanned_late")
EVERY_WAY = pytest.mark.parametrize("cluster", WAYS, indirect=True)


@pytest.fixture(scope="module", params=MAIN_WAYS)
def cluster(
    request: pytest.FixtureRequest,
    device_library: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Cluster]:
    """Two workers, each with a device."""
    protocols, settings = WAYS[request.param]
    made = two_devices(device_library, tmp_path_factory.mktemp("devices"), settings, protocols)
    yield made
    made.close()


def _is_rdma(cluster: Cluster) -> bool:
    return cluster.protocols == [RDMA, RDMA]


def _went_by_rdma(cluster: Cluster, tensors: int = 1) -> None:
    """At least so many tensors were sent, and none by RPC, unless a task is stock."""
    if not _is_rdma(cluster):
        return
    _were_no_rpcs(stats := [cluster.stats(index) for index in (0, 1)])
    counters = [path for each in stats for path in each["paths"].values()]
    assert sum(path["sent_tensors"] for path in counters) >= tensors
    assert sum(path["received_tensors"] for path in counters) >= tensors


def _were_no_rpcs(stats: list[Any]) -> None:
    for each in stats:
        assert each["paths"]["rpc"]["sent_tensors"] == 0, each["rpc_reasons"]
        assert each["rpc_reasons"] == {}


def _run(cluster: Cluster, opened: Any, feeds: dict[Any, Any] | None = None) -> Any:
    """Several steps, the last of which goes by the plan where there is one."""
    cluster.reset_stats()
    results = [opened.run(opened.built, feeds) for _ in range(3)]
    if _is_rdma(cluster) and cluster.plans and not feeds:
        warm_up(cluster, lambda: opened.run(opened.built))
    results.append(opened.run(opened.built, feeds))
    for result in results[:-1]:
        tf.nest.map_structure(np.testing.assert_array_equal, result, results[-1])
    return results[-1]


def _there_and_back(shape: list[int | None]) -> Any:
    """What is fed, and 4 x^2 + 2 x of it."""
    with tf.device(CPU0):
        fed = v1.placeholder(tf.float32, shape)
    with tf.device(DEVICE0):
        there = fed + fed
    with tf.device(DEVICE1):
        back = there * there
    with tf.device(DEVICE0):
        return fed, back + there


# From inside a message, over slots, to where the sender's memory is used in place.
SIZES = (1, 1000, 5000, 1 << 18)
ENDS = {
    "device_to_device": (DEVICE1, DEVICE0),
    "device_to_cpu": (DEVICE1, CPU0),
    "cpu_to_device": (CPU1, DEVICE0),
    "device_to_device_of_the_client": (DEVICE0, DEVICE1),
}


@EVERY_WAY
@pytest.mark.parametrize("ends", ENDS.values(), ids=ENDS)
def test_values(cluster: Cluster, ends: tuple[str, str]) -> None:
    sender, receiver = ends
    contents = [np.random.default_rng(n).normal(size=n).astype("f") for n in SIZES]

    def build() -> Any:
        results = []
        for content in contents:
            with tf.device(sender):
                name = f"v{len(content)}"
                stored = v1.get_variable(name, initializer=content, use_resource=True)
                sent = stored.read_value() + stored.read_value()
            with tf.device(receiver):
                results.append(sent * sent)
        return results

    with session(cluster, build) as opened:
        received = _run(cluster, opened)
        _went_by_rdma(cluster, len(SIZES))
        for content, result in zip(contents, received, strict=True):
            np.testing.assert_array_equal(result, (content + content) * (content + content))


def test_types(cluster: Cluster) -> None:
    dtypes = [tf.float16, tf.int64, tf.float64, tf.complex64, tf.bool]
    contents = [(np.arange(40_000) % 101).astype(dtype.as_numpy_dtype) for dtype in dtypes]

    def build() -> Any:
        with tf.device(DEVICE1):
            sent = [
                v1.get_variable(f"v{i}", initializer=content, use_resource=True).read_value()
                for i, content in enumerate(contents)
            ]
        with tf.device(DEVICE0):
            return [tf.identity(each) for each in sent]

    with session(cluster, build) as opened:
        results = _run(cluster, opened)
        _went_by_rdma(cluster, len(dtypes))
    for content, result in zip(contents, results, strict=True):
        assert result.dtype == content.dtype
        np.testing.assert_array_equal(result, content)


@EVERY_WAY
def test_shapes_that_change(cluster: Cluster) -> None:
    """And empty ones. Each value comes back, so both ends copy twice."""
    with session(cluster, lambda: _there_and_back([None, None])) as opened:
        fed, result = opened.built
        cluster.reset_stats()
        for shape in [(1, 1), (0, 3), (70, 300), (5, 0), (3, 5), (700, 300), (700, 300), (2, 2)]:
            content = np.random.default_rng(sum(shape)).normal(size=shape).astype("f")
            twice = content + content
            expected = twice * twice + twice
            np.testing.assert_array_equal(opened.run(result, {fed: content}), expected)
        _went_by_rdma(cluster, 16)


def test_output_of_a_device_in_host_memory(cluster: Cluster) -> None:
    def build() -> Any:
        with tf.device(DEVICE1):
            stored = v1.get_variable("v", initializer=np.ones((7, 3), "f"), use_resource=True)
            shape = tf.shape(stored.read_value() + stored.read_value())
        with tf.device(CPU0):
            on_cpu = shape + 1
        with tf.device(DEVICE0):
            return on_cpu, tf.reshape(v1.get_variable("w", initializer=np.ones(21, "f")), shape)

    with session(cluster, build) as opened:
        on_cpu, reshaped = _run(cluster, opened)
        _went_by_rdma(cluster)
    assert list(on_cpu) == [8, 4]
    np.testing.assert_array_equal(reshaped, np.ones((7, 3)))


def test_a_new_value_in_each_step(cluster: Cluster) -> None:
    """The memory of the former step's tensors is used again, at both ends."""

    def build() -> Any:
        with tf.device(DEVICE1):
            stored = v1.get_variable("v", initializer=np.zeros(30_000, "f"), use_resource=True)
            sent = stored.read_value() + tf.constant(1.0)
            with tf.control_dependencies([sent]):
                update = stored.assign(sent)
        with tf.device(DEVICE0):
            return update.op, sent * sent

    with session(cluster, build) as opened:
        update, result = opened.built
        for step in range(1, 40):
            _, received = opened.run([update, result])
            np.testing.assert_array_equal(received, np.full(30_000, step * step, "f"))


@pytest.mark.parametrize("elements", [5, 50_000])
def test_condition(cluster: Cluster, elements: int) -> None:
    """Only one branch sends a value."""

    def build() -> Any:
        taken = v1.placeholder(tf.bool, [])
        with tf.device(DEVICE1):
            x = v1.get_variable("x", initializer=np.arange(elements, dtype="f")).read_value()

        def yes() -> Any:
            with tf.device(DEVICE0):
                y = x + x
            with tf.device(DEVICE1):
                return y * y

        def no() -> Any:
            with tf.device(DEVICE0):
                return x * x

        with tf.device(DEVICE1):
            chosen = tf.cond(taken, yes, no)
        with tf.device(DEVICE0):
            return taken, chosen + chosen

    with session(cluster, build) as opened:
        taken, result = opened.built
        x = np.arange(elements, dtype="f")
        cluster.reset_stats()
        for flag in (True, False, False, True):
            expected = 8 * x * x if flag else 2 * x * x
            np.testing.assert_array_equal(opened.run(result, {taken: flag}), expected)
        _went_by_rdma(cluster, 4)


@pytest.mark.parametrize("elements", [5, 50_000])
def test_loop(cluster: Cluster, elements: int) -> None:
    def build() -> Any:
        with tf.device(CPU1):
            count = v1.placeholder(tf.int32, [])
        with tf.device(DEVICE1):
            start = v1.get_variable("x", initializer=np.ones(elements, "f")).read_value()

        def body(i: Any, x: Any) -> Any:
            with tf.device(DEVICE0):
                y = x + x
            with tf.device(DEVICE1):
                x = y + tf.constant(1.0)
            with tf.device(CPU1):
                return i + 1, x

        with tf.device(CPU1):
            _, x = tf.while_loop(lambda i, _: i < count, body, [tf.constant(0), start])
        with tf.device(DEVICE0):
            return count, tf.identity(x)

    with session(cluster, build) as opened:
        count, result = opened.built
        cluster.reset_stats()
        for steps in (0, 1, 12):
            expected = np.full(elements, 2.0 ** (steps + 1) - 1, "f")
            np.testing.assert_array_equal(opened.run(result, {count: steps}), expected)
        _went_by_rdma(cluster, 13)


def test_step_that_fails_and_the_next_one(cluster: Cluster) -> None:
    """While tensors of the device are under way."""

    def build() -> Any:
        with tf.device(CPU1):
            x = v1.placeholder(tf.float32, [])
            failing = v1.assert_positive(x)
        with tf.device(DEVICE1):
            stored = v1.get_variable("v", initializer=np.ones(50_000, "f")).read_value()
            sent = [stored + tf.constant(float(number)) for number in range(5)]
            with tf.control_dependencies([failing]):
                last = stored + stored
        with tf.device(DEVICE0):
            return x, [each * each for each in [*sent, last]]

    with session(cluster, build) as opened:
        x, results = opened.built
        for _ in range(4):
            with pytest.raises(tf.errors.InvalidArgumentError):
                opened.run(results, {x: -1.0})
            for number, result in enumerate(opened.run(results, {x: 1.0})[:5], start=1):
                np.testing.assert_array_equal(result, np.full(50_000, number * number, "f"))


def test_step_that_is_cancelled_and_the_next_one(cluster: Cluster) -> None:
    def build() -> Any:
        with tf.device(CPU1):
            queue = tf.queue.FIFOQueue(10, [tf.float32], [[50_000]])
            item, fill = queue.dequeue(), queue.enqueue(tf.ones([50_000]))
        with tf.device(DEVICE1):
            stored = v1.get_variable("v", initializer=np.ones(50_000, "f")).read_value()
            early, late = stored + stored, item + stored
        with tf.device(DEVICE0):
            return fill, [early * early, late * late]

    with session(cluster, build) as opened:
        fill, results = opened.built
        options = v1.RunOptions(timeout_in_ms=300)
        for _ in range(3):
            with pytest.raises(tf.errors.DeadlineExceededError):
                opened.raw.run(results, options=options)
            for result in opened.run_filling(fill, results)[0]:
                np.testing.assert_array_equal(result, np.full(50_000, 4, "f"))


def test_many_steps_at_once(cluster: Cluster) -> None:
    with session(cluster, lambda: _there_and_back([20_000])) as opened:
        fed, result = opened.built
        wrong: list[Any] = []
        done: list[int] = []

        def steps(number: int) -> None:
            for step in range(6):
                content = np.full(20_000, number * 10 + step, "f")
                received = opened.run(result, {fed: content})
                if not np.array_equal(received, 4 * content * content + 2 * content):
                    wrong.append((number, step))
            done.append(number)

        threads = [threading.Thread(target=steps, args=(n,), daemon=True) for n in range(4)]
        for thread in threads:
            thread.start()
        until("steps do not end", lambda: len(done) == len(threads), STEP_S)
        assert wrong == []


@pytest.mark.parametrize("cluster", ["planned_late", "unplanned_late"], indirect=True)
def test_eager_operations_and_functions(cluster: Cluster) -> None:
    """Between a client, which has a device too, and both tasks."""
    cluster.reset_stats()
    run = subprocess.run(
        [
            warm.python(),
            Path(__file__).with_name("device_client.py"),
            json.dumps(cluster.spec),
        ],
        capture_output=True,
        text=True,
        timeout=100,
        env=cluster.environment(0),
    )
    assert run.returncode == 0, run.stderr[-4000:]
    said = json.loads(run.stdout.splitlines()[-1])
    _were_no_rpcs([said, cluster.stats(0), cluster.stats(1)])
    assert sum(path["sent_tensors"] for path in said["paths"].values()) > 0
