# SPDX-License-Identifier: Apache-2.0
"""Planned tensors when a task dies, when the two ends understand a graph differently, and when a
sender breaks the protocol."""

from __future__ import annotations

import fcntl
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from plugin.planned import PLANNED, UNPLANNED, events, place_bytes, sent, some_number, warm_up
from support.clusters import STEP_S, Cluster, within
from support.graphs import TASK0, TASK1, Session, abandon, cross, session, v1
from support.waits import until

# Elements: in a group, in a slot of its own, lent where it lies.
SIZES = [100] * 6 + [3_000, 1 << 18]
ENDED = (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.CancelledError)


def _from_task_1() -> Any:
    with tf.device(TASK1):
        x = some_number()
        several = [tf.fill([size], x + i) for i, size in enumerate(SIZES)]
    with tf.device(TASK0):
        return x, tf.stack([tf.reduce_max(each) for each in several])


def _to_task_1() -> Any:
    with tf.device(TASK0):
        x = some_number()
        several = [tf.fill([size], x + i) for i, size in enumerate(SIZES)]
    with tf.device(TASK1):
        return x, cross(tf.stack([tf.reduce_max(each) for each in several]))


def _expect_steps(opened: Session, count: int) -> None:
    for _ in range(count):
        x, result = opened.run(opened.built)
        np.testing.assert_array_equal(result, x + np.arange(len(SIZES), dtype="f"))


@pytest.mark.parametrize("build", [_from_task_1, _to_task_1], ids=["sender", "receiver"])
def test_killed_in_the_middle_of_steps(own_cluster: Cluster, build: Callable[[], Any]) -> None:
    """The steps end, its successor gets the same service, and places of the dead are given back."""
    empty = place_bytes(own_cluster)[0]
    opened = Session(own_cluster, build)
    warm_up(own_cluster, lambda: _expect_steps(opened, 1))
    places = place_bytes(own_cluster)[0]
    ended: list[Exception] = []

    def keep_stepping() -> None:
        try:
            while True:
                opened.raw.run(opened.built)
        except Exception as error:
            ended.append(error)

    threads = [threading.Thread(target=keep_stepping, daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    until("nothing is sent", lambda: sent(own_cluster, *PLANNED) > 100)
    own_cluster.tasks[1].kill()
    for thread in threads:
        thread.join(STEP_S)
    assert not any(thread.is_alive() for thread in threads), "a step hangs after its peer's death"
    assert all(isinstance(each, ENDED) for each in ended), ended
    abandon(opened.raw)

    own_cluster.restart(1)
    with session(own_cluster, build) as again:
        warm_up(own_cluster, lambda: _expect_steps(again, 1))
        _expect_steps(again, 30)
        assert sent(own_cluster, "static") >= 30 * len(SIZES)
        assert sent(own_cluster, *UNPLANNED) == 0, [own_cluster.stats(i)["plan"] for i in (0, 1)]
        until("places of the dead stay", lambda: place_bytes(own_cluster)[0] == places)
    until("places stay", lambda: place_bytes(own_cluster)[0] == empty)


@contextmanager
def _faulty_sender(folder: Path, library: Path, **faults: str) -> Iterator[Cluster]:
    """Task 1 runs with faults.c."""
    cluster = Cluster(
        ["grpc+rdma", "grpc+rdma"], folder, {1: faults | {"LD_PRELOAD": str(library)}}
    )
    try:
        yield cluster
    finally:
        cluster.close()


def test_ends_that_understand_a_graph_differently(tmp_path: Path, faults_library: Path) -> None:
    """Each tensor that looks different takes the dynamic path. One warning says so."""
    with (
        _faulty_sender(tmp_path, faults_library, FAULTS_OTHER_PLAN="1") as cluster,
        session(cluster, _from_task_1) as opened,
    ):
        _expect_steps(opened, 1)
        edges = len(cluster.tasks[0].ask("plan")["edges"])
        assert edges >= len(SIZES)
        until("nobody notices", lambda: events(cluster, "mismatched") == edges)
        cluster.reset_stats()
        _expect_steps(opened, 20)
        assert sent(cluster, *PLANNED) == 0
        assert sent(cluster, "inline", "dynamic") == 20 * edges
        (warning,) = cluster.warnings(1)
        assert "with another type or shape" in warning
        assert cluster.warnings(0) == []


@contextmanager
def _nobody_opens(path: Path) -> Iterator[Callable[[], object]]:
    """Other processes that open the file wait until the function that this yields was called."""
    known = signal.signal(signal.SIGIO, signal.SIG_IGN)  # says that somebody wants to
    with path.open("r+b") as file:
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        yield lambda: fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    signal.signal(signal.SIGIO, known)


def test_places_that_are_withdrawn_while_a_group_waits(
    tmp_path: Path, faults_library: Path
) -> None:
    """Some of a group are in their place when the receiver takes the places away. The last one goes another
    way, and the others must not wait for it."""
    hold, early = tmp_path / "hold", 3
    hold.touch()
    # Only what is equally deep in the graph is one group. Behind a branch each has an operation of its own.
    files = [tmp_path / f"number{i}" for i in range(early + 1)]
    for file in files:
        file.write_text("3")

    def build() -> Any:
        with tf.device(TASK1):
            x = tf.raw_ops.Switch(data=some_number(), pred=tf.constant(True)).output_true
            several = [
                tf.fill([100], x + tf.strings.to_number(tf.io.read_file(str(file))))
                for file in files
            ]
        with tf.device(TASK0):
            return x, tf.stack([tf.reduce_max(each) for each in several])

    settings = {"LD_PRELOAD": str(faults_library), "FAULTS_NO_CREDITS": str(hold)}
    cluster = Cluster(["grpc+rdma", "grpc+rdma"], tmp_path, {0: settings})

    def sent_by_plan() -> int:
        return int(cluster.stats(1)["paths"]["static"]["sent_tensors"])

    def received_by_plan() -> int:
        return int(cluster.stats(0)["paths"]["static"]["received_tensors"])

    try:
        with session(cluster, build) as opened:
            ended: list[Any] = []

            def step() -> None:
                try:
                    x, result = opened.raw.run(opened.built)
                    ended.append(result.tolist() == [x + 3] * len(files))
                except Exception as error:
                    ended.append(error)

            # No place is given back: after the first step with a group there is one more.
            while events(cluster, "groups") == 0:
                within(STEP_S, step)
                assert ended.pop() is True
            cluster.reset_stats()
            with _nobody_opens(files[-1]) as let_go:
                runner = threading.Thread(target=step, daemon=True)
                runner.start()
                until("the others are not sent", lambda: sent_by_plan() >= early)
                hold.unlink()
                until("what was sent is not announced", lambda: received_by_plan() >= early)
                assert not ended
                let_go()
            runner.join(STEP_S)
            assert ended == [True], "the step hangs"
            (warning,) = cluster.warnings(0)
            assert "cannot be given back" in warning
    finally:
        cluster.close()


def test_places_that_are_withdrawn_while_a_credit_is_written(
    tmp_path: Path, faults_library: Path
) -> None:
    """A tensor outgrows its place, which another step is about to give back. The sender keeps the memory of
    its credits until that write has come. Otherwise, it would refuse the write, and lose the channel."""
    hold, file = tmp_path / "hold", tmp_path / "number"
    file.write_text("3")

    def build() -> Any:
        size = v1.placeholder(tf.int32, [])
        with tf.device(TASK1):
            ones = tf.ones([size])
        with tf.device(TASK0):
            # The thread that reads gives the place back. The one that takes messages must go on.
            number = tf.strings.to_number(tf.io.read_file(str(file)))
            with tf.control_dependencies([number]):
                total = number * tf.reduce_sum(ones)
        with tf.device(TASK1):
            return size, cross(-total)

    settings = {"RDMATENSOR_TRANSPORTS": "tcp", "RDMATENSOR_TEST_PROMOTE_AFTER": "1"}
    faults = {"LD_PRELOAD": str(faults_library), "FAULTS_HOLD_CREDIT": str(hold)}
    cluster = Cluster(["grpc+rdma"] * 2, tmp_path, {0: settings | faults, 1: settings})

    def received_by_plan() -> int:
        return int(cluster.stats(0)["paths"]["bounded"]["received_tensors"])

    try:
        with session(cluster, build) as opened, ThreadPoolExecutor() as pool:

            def step(count: int) -> None:
                size, result = opened.built
                assert opened.run(result, {size: count}) == -3 * count

            def comes_into_its_place() -> bool:
                step(100)
                return received_by_plan() > 0

            until("it gets no place", comes_into_its_place)
            cluster.reset_stats()
            with _nobody_opens(file) as let_go:
                held = pool.submit(step, 100)
                until("nothing comes into the place", lambda: received_by_plan() == 1)
                hold.touch()
                let_go()
            until("no place is given back", Path(f"{hold}.held").exists)
            step(200)
            assert events(cluster, "demoted") == 1
            step(200)  # now the sender knows
            hold.unlink()
            held.result(STEP_S)
            step(200)
            assert cluster.warnings(0) == cluster.warnings(1) == []
    finally:
        hold.unlink(missing_ok=True)
        cluster.close()


# A message of a planned tensor: step (8 bytes), edge or group (4), flags (1), slot (1), and more.
SPOILT = {
    "edge": (11, 127),
    "flags_that_do_not_exist": (12, 255),
    "no_flags": (12, 0),
    "slot": (13, 255),
    "cut_off": (-1, 0),
}


@pytest.mark.parametrize("what", SPOILT)
def test_sender_that_breaks_the_protocol(tmp_path: Path, faults_library: Path, what: str) -> None:
    """The step ends with an error. The next one connects anew, and goes by the plan again."""
    at, value = SPOILT[what]
    number = 5 * len(SIZES)
    bad = {"FAULTS_BAD_PLANNED": f"{number}:{at}:{value}", "RDMATENSOR_TEST_FUSE_BYTES": "0"}
    # A tensor that is lent has no slot.
    bad["RDMATENSOR_TEST_PLAN_COPY_BYTES"] = "1T"
    with (
        _faulty_sender(tmp_path, faults_library, **bad) as cluster,
        session(cluster, _from_task_1) as opened,
    ):
        pid = cluster.tasks[0].ask("pid")
        with pytest.raises(ENDED):
            for _ in range(100):
                within(STEP_S, lambda: opened.raw.run(opened.built))
        assert len([line for line in cluster.warnings(0) if "malformed" in line]) == 1
        assert cluster.tasks[0].ask("pid") == pid
        with session(cluster, _from_task_1) as again:
            warm_up(cluster, lambda: _expect_steps(again, 1))
            _expect_steps(again, 20)
            assert sent(cluster, *UNPLANNED) == 0


def test_a_write_that_fails_after_it_waited(tmp_path: Path) -> None:
    """A planned tensor is not written although posting it succeeded: the step fails at once, and later
    ones find another way."""
    faults = {"RDMATENSOR_FAULTS": "seed=1,unmapped=1,credit=0.5:5ms,post=0.3"}
    cluster = Cluster(["grpc+rdma", "grpc+rdma"], tmp_path, {1: faults})

    def build() -> Any:
        with tf.device(TASK1):
            value = v1.placeholder(tf.float32, [])
            several = [tf.fill([2000], value + i) for i in range(4)]
        return value, [cross(each) for each in several]

    failed = 0
    try:
        with session(cluster, build) as opened:
            value, results = opened.built
            for step in range(30):
                try:
                    got = within(10, lambda s=step: opened.raw.run(results, {value: float(s)}))
                except (tf.errors.UnavailableError, tf.errors.AbortedError):
                    failed += 1
                else:
                    for i, each in enumerate(got):
                        np.testing.assert_array_equal(each, np.full(2000, step + i, "f"))
            assert 0 < failed < 30
    finally:
        cluster.close()
