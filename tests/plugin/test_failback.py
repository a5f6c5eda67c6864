# SPDX-License-Identifier: Apache-2.0
"""The way between two tasks is cut and heals: tensors go by RPC meanwhile and by the transport again
afterwards, without a restart, and none is lost, doubled or late on the way from one to the other."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from plugin.planned import PLANNED, sent, use_places
from support import warm
from support.clusters import STEP_S, Cluster, within
from support.graphs import TASK0, TASK1, Session, cross, session, v1
from support.waits import until

FAILBACK_MS = 20
SMALL, LARGE = 500, 100_000


class Way:
    """The way between the tasks of a cluster, in both directions."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "cut"
        self.environment = {
            "FAULTS_CUT": str(self.file),
            "RDMATENSOR_TEST_FAILBACK_MS": str(FAILBACK_MS),
            "RDMATENSOR_DEADLINE_MS": "5000",
        }

    def cut(self) -> None:
        self.file.touch()

    def heal(self) -> None:
        self.file.unlink(missing_ok=True)

    @contextmanager
    def is_cut(self) -> Iterator[None]:
        self.cut()
        try:
            yield
        finally:
            self.heal()


@pytest.fixture(scope="module")
def faults(faults_library: Path) -> dict[str, str]:
    return {"LD_PRELOAD": str(faults_library)}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Way:
    return Way(tmp_path_factory.mktemp("path"))


@pytest.fixture(scope="module")
def shaky(
    path: Way, faults: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    """Two tasks, the way between which can be cut."""
    settings = faults | path.environment
    folder = tmp_path_factory.mktemp("shaky")
    cluster = Cluster.pair(folder, settings)
    yield cluster
    cluster.close()


def _build() -> Any:
    """Small, large and dead tensors and strings both ways, and a loop over the border."""
    with tf.device(TASK0):
        value = v1.placeholder(tf.float32, [])
        there = [tf.fill([size], value + i) for i, size in enumerate((SMALL, LARGE))]
    with tf.device(TASK1):
        back = [each * 2 for each in there]
        word = tf.strings.as_string(value)

    def body(i: Any, total: Any) -> Any:
        with tf.device(TASK1):
            more = total + value
        with tf.device(TASK0):
            return i + 1, tf.identity(more)

    with tf.device(TASK0):
        looped = tf.while_loop(lambda i, _: i < 5, body, [0, 0.0])[1]
        chosen = tf.cond(value > 100.0, lambda: back[0][0] + 1, lambda: back[1][0] + 2)
    return value, [*(cross(each) for each in back), cross(word), looped, chosen]


def _expect(opened: Session, value: float) -> None:
    """A step, and what comes of it."""
    small, large, word, looped, chosen = opened.run(opened.built[1], {opened.built[0]: value})
    np.testing.assert_array_equal(small, np.full(SMALL, 2 * value, "f"))
    np.testing.assert_array_equal(large, np.full(LARGE, 2 * (value + 1), "f"))
    assert float(word) == value
    assert looped == 5 * value
    assert chosen == (2 * value + 1 if value > 100 else 2 * (value + 1) + 2)


def _lost(opened: Session, value: float) -> bool:
    """A step, which the end of a channel may have ended."""
    try:
        _expect(opened, value)
    except (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.CancelledError):
        return True
    return False


def _states(cluster: Cluster) -> list[str]:
    """How tasks receive from each other."""
    return [
        peer["state"]
        for index in range(len(cluster.tasks))
        for peer in cluster.stats(index)["peers"]
        if peer["direction"] == "receive" and "/job:worker/" in peer["task"]
    ]


def _go_by_rpc(cluster: Cluster, opened: Session) -> None:
    """Makes steps until both tasks receive by RPC."""
    end = time.monotonic() + STEP_S
    while _states(cluster) != ["rpc", "rpc"]:
        assert time.monotonic() < end, _states(cluster)
        _lost(opened, 3.0)


def _return(cluster: Cluster, opened: Session) -> None:
    """Makes steps, none of which may fail, until both tasks receive by the transport."""
    end = time.monotonic() + STEP_S
    while _states(cluster) != ["ready", "ready"]:
        assert time.monotonic() < end, _states(cluster)
        _expect(opened, 5.0)


def _failbacks(cluster: Cluster) -> list[int]:
    return [cluster.stats(index)["failbacks"] for index in (0, 1)]


def test_traffic_returns_to_its_places(shaky: Cluster, path: Way) -> None:
    with session(shaky, _build) as opened:
        use_places(shaky, lambda o=opened: _expect(o, 2.0))
        pids = [task.ask("pid") for task in shaky.tasks]
        said = [len(shaky.log(index).splitlines()) for index in (0, 1)]
        with path.is_cut():
            _go_by_rpc(shaky, opened)
            shaky.reset_stats()
            waits = set()
            for number in range(10):
                _expect(opened, 200.0 + number)
                time.sleep(
                    2 * FAILBACK_MS / 1000
                )  # attempts fail meanwhile, which is what is looked at
                (peer,) = [p for p in shaky.stats(0)["peers"] if p["direction"] == "receive"]
                assert peer["transport"] == "grpc"
                assert peer["retry_in_ms"] is not None
                assert "the path is cut" in peer["why"]
                waits.add(int(re.findall(r"tried again in (\d+) ms", peer["why"])[0]))
            assert sent(shaky, *PLANNED) == 0
            # Each failure doubles what is waited for the next attempt.
            assert len(waits) > 2 and all(wait % FAILBACK_MS == 0 for wait in waits), waits
        _return(shaky, opened)
        use_places(shaky, lambda o=opened: _expect(o, 2.0))
        assert [task.ask("pid") for task in shaky.tasks] == pids
        for index in (0, 1):
            lines = shaky.log(index).splitlines()[said[index] :]
            # One for each change, although there were many attempts.
            assert sum("WARN" in line and "go by grpc" in line for line in lines) == 1, lines
            assert sum("can be reached again" in line for line in lines) == 1, lines


def test_failbacks_are_counted(shaky: Cluster, path: Way) -> None:
    with session(shaky, _build) as opened:
        _expect(opened, 1.0)
        shaky.reset_stats()
        with path.is_cut():
            _go_by_rpc(shaky, opened)
        assert _failbacks(shaky) == [0, 0]
        _return(shaky, opened)
        assert _failbacks(shaky) == [1, 1]
        (peer,) = [p for p in shaky.stats(1)["peers"] if p["direction"] == "receive"]
        assert (peer["failbacks"], peer["retry_in_ms"]) == (1, None)


def test_requests_under_way_are_answered(shaky: Cluster, path: Way) -> None:
    """A step that asked by RPC ends by RPC, although the way heals before its tensors are sent; what it
    wants later comes by the transport."""

    def build() -> Any:
        with tf.device(TASK1):
            gates = [v1.FIFOQueue(10, [tf.float32], shapes=[[]]) for _ in range(2)]
            first, now = gates[0].dequeue(), tf.random.uniform([])
        with tf.device(TASK0):
            seen, begun = (v1.FIFOQueue(10, [tf.float32], shapes=[[]]) for _ in range(2))
            begin = begun.enqueue(cross(now))
            with tf.control_dependencies([seen.enqueue(cross(first))]):
                here = tf.identity(first) + 1
        with tf.device(TASK1):
            second = here + gates[1].dequeue()
        fills = [gate.enqueue(float(i + 1)) for i, gate in enumerate(gates)]
        return fills, seen.dequeue(), begun.dequeue(), [cross(second), begin]

    with session(shaky, _build) as opened, session(shaky, build) as waiting:
        fills, seen, begun, result = waiting.built
        _expect(opened, 1.0)

        def asks_before_the_way_heals() -> bool:
            with path.is_cut():
                _go_by_rpc(shaky, opened)
                got: list[Any] = []
                step = threading.Thread(
                    target=lambda: got.append(waiting.raw.run(result)[0]), daemon=True
                )
                step.start()
                waiting.run(begun)  # a tensor of the same step has come
            _return(shaky, opened)
            shaky.reset_stats()
            waiting.run(fills[0])
            waiting.run(seen)
            answered = sent(shaky, "rpc")
            waiting.run(fills[1])
            step.join(STEP_S)
            assert got == [4.0]
            return answered > 0

        # Nothing shows that a step has asked until it is answered.
        until("no step asked before the way healed", asks_before_the_way_heals)


def test_no_tensor_is_lost_while_the_way_comes_and_goes(shaky: Cluster, path: Way) -> None:
    """Concurrent steps: each has the right values, or fails because the way was cut."""
    chance = random.Random(7)
    stop = threading.Event()
    failed: list[BaseException] = []
    counts = {True: 0, False: 0}

    def steps(opened: Session, first: int) -> None:
        number = float(first)
        try:
            while not stop.is_set():
                number += 1
                counts[_lost(opened, number)] += 1
        except BaseException as error:
            failed.append(error)
            stop.set()

    with session(shaky, _build) as one, session(shaky, _build) as other:
        _expect(one, 1.0)
        shaky.reset_stats()
        threads = [
            threading.Thread(target=steps, args=(opened, first), daemon=True)
            for opened, first in ((one, 0), (one, 90), (other, 1000))
        ]
        for thread in threads:
            thread.start()
        end = time.monotonic() + STEP_S
        while min(_failbacks(shaky)) < 4 and not failed:
            assert time.monotonic() < end, _failbacks(shaky)
            # How long the way is cut, and is not, is what the test varies.
            with path.is_cut():
                time.sleep(chance.uniform(0.05, 0.2))
            time.sleep(chance.uniform(0.1, 0.4))
        stop.set()
        for thread in threads:
            thread.join(2 * STEP_S)
            assert not thread.is_alive(), "a step hangs"
        assert not failed, failed
        assert counts[False] > counts[True], counts
        _return(shaky, one)
        for opened in (one, other):
            use_places(shaky, lambda o=opened: _expect(o, 2.0))


def _client(shaky: Cluster, path: Way, faults: dict[str, str], *more: str) -> Any:
    """What a client says that is cut off from both tasks, as these are from each other."""
    run = subprocess.run(
        [
            warm.python(LD_PRELOAD=faults["LD_PRELOAD"]),
            Path(__file__).with_name("failback_client.py"),
            json.dumps(shaky.spec),
            "grpc+rdma",
            path.file,
            *more,
        ],
        # What is streamed may be told of the failure of another operation: in TensorFlow's words, and kinds.
        env=os.environ
        | path.environment
        | faults
        | {"TF_ENABLE_EAGER_CLIENT_STREAMING_ENQUEUE": str(bool(more))},
        capture_output=True,
        text=True,
        timeout=400,  # each round of a stream has 30 s
    )
    path.heal()
    assert run.returncode == 0, run.stderr[-4000:]
    return json.loads(run.stdout.splitlines()[-1])


def test_eager_operations(shaky: Cluster, path: Way, faults: dict[str, str]) -> None:
    said = _client(shaky, path, faults)
    assert said["failbacks"] >= 1
    before, during, after = said["failed"]
    assert (before, after) == (0, 0), said
    assert during < 50, said


@pytest.mark.timeout(600)
def test_streams_keep_their_order(shaky: Cluster, path: Way, faults: dict[str, str]) -> None:
    """From channels to gRPC and back; what a loss hits comes once or never."""
    said = _client(shaky, path, faults, "streams")
    assert said["came"] > 0.5 * said["sent"], said


@pytest.mark.timeout(600)
def test_disturbed_calls(path: Way, faults: dict[str, str], tmp_path: Path) -> None:
    """Messages of calls come late, or twice, or their channel ends: a step has the right values or fails,
    and what is streamed comes once or never."""
    calm = tmp_path / "calm"
    disturbed = faults | {"FAULTS_CALLS": "15", "FAULTS_CALM": str(calm)}
    settings = disturbed | path.environment
    cluster = Cluster.pair(tmp_path, settings)
    try:
        with session(cluster, _build) as opened:
            for number in range(200):
                _lost(opened, float(number))
            until("nothing is disturbed", lambda: _lost(opened, 1.0))
            until("no step succeeds any more", lambda: not _lost(opened, 1.0))
            assert cluster.stats(0)["control"]["/job:worker/replica:0/task:1"]["channel_calls"] > 0
        calm.touch()
        said = _client(cluster, path, disturbed, "disturbed", str(calm))
        assert said["came"] > 0, said
        assert any(failed for _, _, _, failed in said["rounds"]), said
    finally:
        cluster.close()


def test_policy_rdma_fails_with_the_cause(
    path: Way, faults: dict[str, str], tmp_path: Path
) -> None:
    """And goes on when the way heals."""
    settings = faults | path.environment | {"RDMATENSOR_POLICY": "rdma"}
    cluster = Cluster.pair(tmp_path, settings)
    try:
        with path.is_cut(), session(cluster, _build) as opened:
            for _ in range(2):
                with pytest.raises(tf.errors.UnavailableError, match="the path is cut"):
                    _expect(opened, 1.0)
            # Between one attempt and the next, not at every moment.
            until("peers are not refused", lambda: set(_states(cluster)) == {"refused"})
            path.heal()
            _expect(opened, 2.0)
            assert cluster.stats(0)["paths"]["rpc"]["received_tensors"] <= 1  # strings
    finally:
        cluster.close()


def test_stopped_for_longer_than_the_deadline(tmp_path: Path) -> None:
    """Whether the peer counts as lost or not: when it goes on, so do the steps and their places."""
    settings = {
        "RDMATENSOR_DEADLINE_MS": "1000",
        "RDMATENSOR_TEST_FAILBACK_MS": "100",
    }
    cluster = Cluster.pair(tmp_path, settings)
    try:
        with session(cluster, _build) as opened:
            _expect(opened, 1.0)
            options = v1.RunOptions(timeout_in_ms=4000)
            with cluster.tasks[1].stopped():
                with pytest.raises(tf.errors.OpError):
                    within(
                        STEP_S,
                        lambda: opened.raw.run(
                            opened.built[1], {opened.built[0]: 2.0}, options=options
                        ),
                    )
                # Silence is what is tested: the peer says nothing for longer than both of its deadlines, and
                # whether it is counted as lost is left open.
                time.sleep(1)
            end = time.monotonic() + STEP_S
            while _lost(opened, 4.0):
                assert time.monotonic() < end, "no step succeeds"
            _return(cluster, opened)
            use_places(cluster, lambda: _expect(opened, 2.0))
    finally:
        cluster.close()


def test_survivors_of_many_restarts(own_cluster: Cluster) -> None:
    """The other task never is restarted, and works with every successor."""
    for restarted in (1, 0):
        survivor = own_cluster.tasks[1 - restarted].ask("pid")
        for number in range(10):
            with session(own_cluster, _build) as opened:
                _expect(opened, float(number))
            own_cluster.restart(restarted)
        assert own_cluster.tasks[1 - restarted].ask("pid") == survivor
        with session(own_cluster, _build) as opened:
            use_places(own_cluster, lambda: _expect(opened, 2.0))
