# SPDX-License-Identifier: Apache-2.0
"""Steps are started and ended over channels, and behave as over gRPC: values, kinds of errors, texts."""

from __future__ import annotations

import functools
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from support.clusters import STEP_S, Cluster, within
from support.graphs import TASK0, TASK1, Session, abandon, config, cross, session, v1
from support.waits import until

errors = tf.errors
WORKER1 = "/job:worker/replica:0/task:1"
# Over grpc the plugin is not there; in between it carries tensors only.
WAYS = {
    "grpc": ("grpc", {}),
    "tensors_only": ("grpc+rdma", {"RDMATENSOR_CONTROL": "grpc"}),
    "channel": ("grpc+rdma", {}),
    "reading_channel": ("grpc+rdma", {"RDMATENSOR_TEST_ALIAS_BYTES": "1T"}),
}


def _cluster(way: str, folder: Path) -> Cluster:
    protocol, settings = WAYS[way]
    return Cluster([protocol] * 2, folder, dict.fromkeys((0, 1), settings))


@pytest.fixture(scope="module", params=WAYS)
def way(request: pytest.FixtureRequest) -> str:
    """How control messages travel."""
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def workers(way: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two workers that call each other that way."""
    cluster = _cluster(way, tmp_path_factory.mktemp(way))
    yield cluster
    cluster.close()


@pytest.fixture
def mortal(way: str, tmp_path: Path) -> Iterator[Cluster]:
    """The same, for one test."""
    cluster = _cluster(way, tmp_path)
    yield cluster
    cluster.close()


def _control(cluster: Cluster) -> Any:
    """How task 0 calls task 1."""
    return cluster.stats(0)["control"].get(WORKER1, {"way": "stock"})


def _connected(opened: Session, cluster: Cluster, way: str, step: Any) -> None:
    """Runs steps until they go the expected way."""

    def gone() -> bool:
        opened.run(step)
        return bool(_control(cluster)["way"] == "channel")

    if way.endswith("channel"):
        until("no step goes over a channel", gone)


def _failure(step: Callable[[], Any]) -> Exception:
    """What `step` raises, in time."""
    with pytest.raises(errors.OpError) as raised:
        within(STEP_S, step)
    return raised.value


def _essence(error: Exception) -> str:
    """An error's text without what differs from run to run, and what only a transport of bytes knows."""
    text = str(getattr(error, "message", error)).split("\nAdditional GRPC error information")[0]
    return re.sub(r"[0-9a-f]{8,}|\d{6,}", "#", text)


def _arithmetic() -> Any:
    with tf.device(TASK1):
        numbers = v1.placeholder(tf.float32, [None])
        word = v1.placeholder(tf.string, [])
        doubled = numbers * 2
        said = tf.strings.join([word, "!"])
        total = tf.reduce_sum(numbers)
        variable = v1.get_variable("held", initializer=tf.zeros([4]), use_resource=True)
        old = v1.get_variable("old", initializer=tf.zeros([30_000]), use_resource=False)
        grown = old.assign_add(tf.ones([30_000]))
        kept = variable.assign_add(numbers[:4])
        nothing = tf.zeros([0, 3])
    return numbers, word, [doubled, said, total, cross(total), kept, nothing], grown, old


@pytest.mark.parametrize("size", [4, 5_000, 100_000, 3_000_000])
def test_fed_and_fetched_values(workers: Cluster, way: str, size: int) -> None:
    with session(workers, _arithmetic) as opened:
        numbers, word, results, grown, old = opened.built
        given = np.arange(size, dtype="f")
        fed = {numbers: given, word: "word"}
        _connected(opened, workers, way, opened.graph.get_operation_by_name("init"))
        kept = np.zeros(4, "f")
        for step in range(1, 4):
            doubled, said, total, crossed, variable, nothing = opened.run(results, fed)
            np.testing.assert_array_equal(doubled, given * 2)
            kept += given[:4]
            np.testing.assert_array_equal(variable, kept)
            assert said == b"word!"
            assert np.isclose(total, given.sum(), rtol=1e-3) and total == crossed
            assert nothing.shape == (0, 3)
            # What a client got is its own: it may write there, and later steps write elsewhere.
            doubled[:] = -1
            first = opened.run(grown)
            np.testing.assert_array_equal(first, np.full(30_000, step, "f"))
            opened.run(old)
    stats = _control(workers)
    if way.endswith("channel"):
        assert stats["way"] == "channel"
        assert stats["channel_calls"] >= 12
        peers = workers.stats(0)["peers"]
        assert {peer["control"] for peer in peers if peer["task"] == WORKER1} == {"channel"}
    elif way == "tensors_only":
        assert stats["way"] == "stock"


def _failing() -> Any:
    with tf.device(TASK1):
        checked = v1.placeholder(tf.float32, [])
        with tf.control_dependencies([v1.assert_positive(checked, name="positive")]):
            positive = tf.identity(checked, name="passed")
        raising = v1.py_func(_raise, [checked], tf.float32, name="raising")
    return checked, cross(positive), raising


def _raise(_: Any) -> Any:
    raise ValueError("this function raises")


def test_errors_of_the_graph(way: str, workers: Cluster) -> None:
    """An error keeps its kind and its text, and the next step works."""
    with session(workers, _failing) as opened:
        checked, positive, raising = opened.built
        for _ in range(2):
            error = _failure(lambda: opened.raw.run(positive, {checked: -1.0}))
            assert type(error) is errors.InvalidArgumentError
            # The task that failed, or the one that waited for it, whichever said so first.
            assert "From /job:worker/replica:0/task:" in _essence(error)
            assert "assertion failed" in _essence(error)
            assert opened.run(positive, {checked: 1.0}) == 1.0
        error = _failure(lambda: opened.raw.run(raising, {checked: 1.0}))
        assert type(error) in (
            errors.UnknownError,
            errors.InternalError,
            errors.InvalidArgumentError,
        )
        assert "raising" in str(error)
        assert opened.run(positive, {checked: 2.0}) == 2.0


def _waiting() -> Any:
    with tf.device(TASK1):
        queue, begun = (v1.FIFOQueue(10, [tf.float32], shapes=[[]]) for _ in range(2))
        with tf.control_dependencies([begun.enqueue(1.0)]):
            item = queue.dequeue()
    return queue.enqueue(1.0), item, cross(item), begun.size(), tf.no_op()


def test_time_out(way: str, workers: Cluster) -> None:
    with session(workers, _waiting) as opened:
        fill, item, crossed, begun, _ = opened.built
        _connected(opened, workers, way, begun)
        options = v1.RunOptions(timeout_in_ms=300)
        for waits in (item, crossed):
            error = _failure(functools.partial(opened.raw.run, waits, options=options))
            assert type(error) is errors.DeadlineExceededError
        results = opened.run_filling(fill, item, at_once=1)
        assert results == [1.0]


def test_closed_session_cancels(way: str, workers: Cluster) -> None:
    with session(workers, _waiting) as opened:
        _, item, _, begun, _ = opened.built
        _connected(opened, workers, way, begun)
        ended: list[Exception] = []

        def step() -> None:
            try:
                opened.raw.run(item)
            except Exception as error:
                ended.append(error)

        runner = threading.Thread(target=step, daemon=True)
        runner.start()
        until("the step does not begin", lambda: opened.run(begun) > 0)
        within(STEP_S, opened.raw.close)
        runner.join(STEP_S)
        assert not runner.is_alive()
        assert isinstance(ended[0], errors.CancelledError)


def test_traces_and_partition_graphs(way: str, workers: Cluster) -> None:
    with session(workers, _arithmetic) as opened:
        numbers, word, results, _, _ = opened.built
        fed = {numbers: np.ones(100, "f"), word: "word"}
        options = v1.RunOptions(trace_level=v1.RunOptions.FULL_TRACE, output_partition_graphs=True)
        metadata = v1.RunMetadata()
        within(STEP_S, lambda: opened.raw.run(results, fed, options, metadata))
        devices = {stats.device for stats in metadata.step_stats.dev_stats}
        assert any(device.startswith(WORKER1) for device in devices)
        assert len(metadata.partition_graphs) == 2


def test_partial_runs(way: str, workers: Cluster) -> None:
    def build() -> Any:
        with tf.device(TASK1):
            a, b = (v1.placeholder(tf.float32, [None]) for _ in range(2))
            first = a + 1
            second = first * b
        return a, b, first, second

    with session(workers, build) as opened:
        a, b, first, second = opened.built
        given = np.arange(50_000, dtype="f")
        for _ in range(3):
            handle = within(STEP_S, lambda: opened.raw.partial_run_setup([first, second], [a, b]))
            one = within(STEP_S, lambda h=handle: opened.raw.partial_run(h, first, {a: given}))
            np.testing.assert_array_equal(one, given + 1)
            two = within(STEP_S, lambda h=handle: opened.raw.partial_run(h, second, {b: given}))
            np.testing.assert_array_equal(two, (given + 1) * given)


def test_several_sessions_and_masters(way: str, workers: Cluster) -> None:
    """Each task is the master of sessions of its own, at the same time."""
    failed: list[BaseException] = []

    def steps(index: int, here: str, there: str) -> None:
        try:
            with tf.Graph().as_default() as graph:
                with tf.device(there):
                    x = v1.placeholder(tf.float32, [None])
                    total = tf.reduce_sum(x * index)
                with tf.device(here):
                    result = tf.identity(total)
                target = f"grpc://{workers.spec['worker'][index % 2]}"
                with v1.Session(target, graph=graph, config=config()) as opened:
                    for size in (1, 1000, 50_000):
                        assert opened.run(result, {x: np.ones(size, "f")}) == size * index
        except BaseException as error:
            failed.append(error)

    threads = [
        threading.Thread(
            target=steps, args=(i, *((TASK0, TASK1) if i % 2 == 0 else (TASK1, TASK0)))
        )
        for i in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * STEP_S)
    assert not any(thread.is_alive() for thread in threads)
    assert not failed, failed


def test_killed_and_restarted_task(way: str, mortal: Cluster) -> None:
    """A task that dies during a step fails it with UnavailableError; its successor serves new sessions."""
    opened = Session(mortal, _waiting)
    _, item, _, begun, _ = opened.built
    _connected(opened, mortal, way, begun)
    ended: list[Exception] = []

    def step() -> None:
        try:
            opened.raw.run(item)
        except Exception as error:
            ended.append(error)

    runner = threading.Thread(target=step, daemon=True)
    runner.start()
    until("the step does not begin", lambda: opened.run(begun) > 0)
    mortal.tasks[1].kill()
    runner.join(STEP_S)
    assert not runner.is_alive(), "the step hangs after its task was killed"
    assert type(ended[0]) is errors.UnavailableError
    # Also if task 0, which lost a tensor with it, said so first.
    assert f"GRPC error information from remote target {WORKER1}" in str(ended[0])
    abandon(opened.raw)
    mortal.restart(1)
    with session(mortal, _waiting) as again:
        fill, item, _, begun, _ = again.built
        _connected(again, mortal, way, begun)
        again.run(fill)
        assert again.run(item) == 1.0
    if way.endswith("channel"):
        assert _control(mortal)["way"] == "channel"


def test_stopped_task(way: str, mortal: Cluster) -> None:
    """A step waits for a task that is stopped, and goes on with it; one with a time-out ends."""
    with session(mortal, _arithmetic) as opened:
        numbers, word, results, _, _ = opened.built
        fed = {numbers: np.ones(100, "f"), word: "word"}
        _connected(opened, mortal, way, opened.graph.get_operation_by_name("init"))
        options = v1.RunOptions(timeout_in_ms=500)
        with mortal.tasks[1].stopped():
            error = _failure(lambda: opened.raw.run(results, fed, options))
            assert type(error) is errors.DeadlineExceededError
            done = threading.Thread(target=lambda: opened.run(results, fed), daemon=True)
            done.start()
            done.join(0.5)
            assert done.is_alive()
        done.join(STEP_S)
        assert not done.is_alive()
        assert opened.run(results, fed)[1] == b"word!"


def _disturbed(workers: Cluster, index: int, faults: str, step: Callable[[], object]) -> str:
    """Steps while the messages of one task suffer; what was logged meanwhile. Then all is well again."""
    kind = faults.split("=")[0]
    seen = [len(workers.log(each)) for each in (0, 1)]
    before = workers.tasks[index].ask(f"faults {faults}")[kind]
    for _ in range(5):
        with suppress(errors.UnavailableError):
            step()
    assert workers.tasks[index].ask("faults ")[kind] > before

    def goes_over_a_channel() -> bool:
        with suppress(errors.UnavailableError):
            step()
            return bool(_control(workers)["way"] == "channel")
        return False

    until("no step goes over a channel again", goes_over_a_channel)
    return "".join(workers.log(each)[seen[each] :] for each in (0, 1))


@pytest.mark.parametrize("index", [0, 1], ids=["requests", "answers"])
def test_disturbed_messages(workers: Cluster, way: str, index: int) -> None:
    """They come late, never or twice; what comes twice is refused, and never executed twice."""
    if way != "channel":
        pytest.skip("messages of calls go over channels")

    def build() -> Any:
        with tf.device(TASK1):
            count = v1.get_variable("count", initializer=0.0, use_resource=True)
            return count.assign_add(1.0), count.read_value()

    with session(workers, build) as opened:
        more, count = opened.built
        done = [0]

        def step() -> None:
            before = done[0]
            with suppress(errors.UnavailableError):
                done[0] = int(opened.raw.run(more))
                assert done[0] == before + 1
                return
            done[0] = int(opened.run(count))
            assert done[0] in (before, before + 1)
            raise errors.UnavailableError(None, None, "the step was lost")

        _connected(opened, workers, way, count)
        logged = _disturbed(workers, index, "call_delay=1:20ms", step)
        assert "closing its channel" not in logged
        _disturbed(workers, index, "call_break=#3", step)
        logged = _disturbed(workers, index, "call_duplicate=#3", step)
        assert "sent a malformed message: closing its channel" in logged


def _sleeps(pid: int) -> int:
    """How often threads of a process went to sleep, and so were woken."""
    found = 0
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):  # it has ended
            told = (thread / "status").read_text()
            found += int(told.split("\nvoluntary_ctxt_switches:")[1].split()[0])
    return found


def test_wake_ups(way: str, workers: Cluster) -> None:
    """A step costs a task a few wake-ups: 5 over a channel, 13 over gRPC (measured)."""

    def build() -> Any:
        with tf.device(TASK1):
            return cross(tf.reduce_sum(tf.random.uniform([256])))

    steps = 200
    with session(workers, build) as opened:
        _connected(opened, workers, way, opened.built)
        for _ in range(50):
            opened.run(opened.built)
        pid = workers.tasks[1].ask("pid")
        before = _sleeps(pid)
        for _ in range(steps):
            opened.raw.run(opened.built)
        a_step = (_sleeps(pid) - before) / steps
    if way.endswith("channel"):
        assert a_step < 9


def test_a_task_without_the_plugin(tmp_path: Path) -> None:
    """It is called over gRPC, by a task that calls others over channels."""
    cluster = Cluster(["grpc+rdma", "grpc", "grpc+rdma"], tmp_path)
    third = "/job:worker/replica:0/task:2"

    def build() -> Any:
        totals = []
        x = v1.placeholder(tf.float32, [None])
        for index in range(3):
            with tf.device(f"/job:worker/task:{index}"):
                totals.append(cross(tf.reduce_sum(x)))
        return x, totals

    try:
        with session(cluster, build) as opened:
            x, totals = opened.built

            def as_they_can_be() -> bool:
                assert opened.run(totals, {x: [1.0, 2.0]}) == [3.0, 3.0, 3.0]
                told = cluster.stats(0)["control"]
                ways = {task: each["way"] for task, each in told.items()}
                # Before the first attempt it is called by grpc as well, for no reason.
                return ways == {WORKER1: "grpc", third: "channel"} and (
                    "no grpc+rdma" in told[WORKER1]["why"]
                )

            until("tasks are called as they can be, and why", as_they_can_be)
    finally:
        cluster.close()


def test_settings_may_differ(tmp_path: Path) -> None:
    """Each task calls others as its own CONTROL says, whatever theirs is."""
    cluster = Cluster(["grpc+rdma"] * 2, tmp_path, {0: {"RDMATENSOR_CONTROL": "grpc"}, 1: {}})

    def build() -> Any:
        totals = []
        x = v1.placeholder(tf.float32, [None])
        for device in (TASK0, TASK1):
            with tf.device(device):
                totals.append(tf.reduce_sum(x))
        return x, totals

    try:
        for index in (0, 1):
            with tf.Graph().as_default() as graph:
                x, totals = build()
            raw = v1.Session(cluster.tasks[index].target, graph=graph, config=config())

            def step(raw: Any = raw, x: Any = x, totals: Any = totals) -> None:
                given = np.ones(50_000, "f")
                assert within(STEP_S, lambda: raw.run(totals, {x: given})) == [50_000.0] * 2

            step()
            if index == 1:
                task0 = "/job:worker/replica:0/task:0"

                def goes_over_a_channel(step: Any = step, task0: str = task0) -> bool:
                    step()
                    return bool(cluster.stats(1)["control"][task0]["way"] == "channel")

                until("no step goes over a channel", goes_over_a_channel)
            raw.close()
        assert cluster.stats(0)["control"] == {}
    finally:
        cluster.close()
