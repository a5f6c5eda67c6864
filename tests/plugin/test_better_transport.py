# SPDX-License-Identifier: Apache-2.0
"""Tasks train over a worse transport, and a better one can be used again: tensors and calls move to it while
steps go on, and none fails for that. Here shm is better than tcp."""

from __future__ import annotations

import json
import os
import random
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from plugin.planned import use_places
from plugin.test_failback import _build, _expect
from plugin.transports import LOST, go_over, needs_shm, received_over, sources
from support import WHOLE, warm
from support.clusters import STEP_S, Cluster
from support.graphs import Session, abandon, session
from support.waits import until

pytestmark = needs_shm
FAILS_AGAIN = "better transport fails again"
# The transport is wrapped from the start, so that faults can be set later.
WORSE, BETTER = "transport=shm,connect=1", "transport=shm,connect=#1000000"
SETTINGS = {"RDMATENSOR_FAULTS": WORSE, "RDMATENSOR_TEST_FAILBACK_MS": "20"}


def _inject(cluster: Cluster, faults: str) -> None:
    for task in cluster.tasks:
        task.ask(f"faults {faults}")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    made = Cluster.pair(tmp_path_factory.mktemp("better"), SETTINGS)
    yield made
    made.close()


def _called_over(cluster: Cluster) -> str:
    control: Any = cluster.stats(0)["control"]["/job:worker/replica:0/task:1"]
    return str(control["why"])


def _go_over(cluster: Cluster, opened: Session, transport: str) -> None:
    go_over(cluster, lambda: _expect(opened, 3.0), transport)


def _worsen(cluster: Cluster, opened: Session) -> None:
    """Both are over tcp, as after the loss of the better transport."""
    _inject(cluster, WORSE + ",break=1")
    _go_over(cluster, opened, "tcp")
    _inject(cluster, WORSE)


@contextmanager
def _steps(sessions: list[Session]) -> Iterator[dict[str, Any]]:
    """Makes steps in several threads meanwhile, each with the right values. Counts those that failed."""
    stop = threading.Event()
    wrong: list[BaseException] = []
    counts: dict[str, Any] = {"made": 0, "lost": (lost := [])}

    def steps(opened: Session, first: int) -> None:
        number = first
        try:
            while not stop.is_set():
                number += 1
                try:
                    _expect(opened, float(number % 1000))
                    counts["made"] += 1
                except LOST as error:
                    lost.append(error)
        except BaseException as error:
            wrong.append(error)
            stop.set()

    threads = [
        threading.Thread(target=steps, args=(opened, 90 * index), daemon=True)
        for index, opened in enumerate(sessions)
    ]
    for thread in threads:
        thread.start()
    try:
        yield counts
    finally:
        stop.set()
        for thread in threads:
            thread.join(2 * STEP_S)
            assert not thread.is_alive(), "a step hangs"
        assert not wrong, wrong


def _until_moved(cluster: Cluster) -> None:
    until("tasks stay on tcp", lambda: received_over(cluster) == ["shm"] * 2)


def test_steps_go_on_while_tensors_and_calls_move(cluster: Cluster, note: Any) -> None:
    with session(cluster, _build) as one, session(cluster, _build) as other:
        _worsen(cluster, one)
        _expect(other, 1.0)
        cluster.reset_stats()
        with _steps([one, one, one, other]) as counts:
            until("no steps", lambda: counts["made"] > 20)
            _inject(cluster, BETTER)
            _until_moved(cluster)
            before = counts["made"]
            until("no steps afterwards", lambda: counts["made"] > before + 20)
        assert not counts["lost"], [str(each) for each in counts["lost"]]
        until("moves are not counted", lambda: [p["moves"] for p in sources(cluster)] == [1, 1])
        for peer in sources(cluster):
            assert "tcp was used meanwhile" in peer["why"], peer

        def calls_moved() -> bool:
            _expect(one, 1.0)
            return _called_over(cluster) == "shm"

        until("calls stay on tcp", calls_moved)
        # All of it goes by the new channel, and planned tensors to places there.
        use_places(cluster, lambda: _expect(one, 2.0))
        for index in (0, 1):
            transports = cluster.stats(index)["transports"]
            assert transports.get("tcp", {}).get("sent_bytes", 0) == 0, transports
            assert transports["shm"]["sent_bytes"] > 0, transports
    note("better transport works again", "nothing", None, "all steps, while tensors and calls move")


def test_there_and_back_often(cluster: Cluster) -> None:
    with session(cluster, _build) as one, session(cluster, _build) as other:
        for _ in range(6):
            _worsen(cluster, one)
            _expect(other, 1.0)
            with _steps([one, one, other, other]) as counts:
                until("no steps", lambda counts=counts: counts["made"] > 5)
                _inject(cluster, BETTER)
                _until_moved(cluster)
                before = counts["made"]
                until("no steps afterwards", lambda b=before, c=counts: c["made"] > b + 5)
            assert not counts["lost"], [str(each) for each in counts["lost"]]


def _new_channel_ends(cluster: Cluster, sessions: list[Session], number: int) -> list[Any]:
    """Tensors move to the better transport, which breaks at that occasion, and then again. The steps lost."""
    _worsen(cluster, sessions[0])
    with _steps(sessions) as counts:
        _inject(cluster, f"{BETTER},break=#{number}")
        _until_moved(cluster)
        before = counts["made"]
        until("no steps afterwards", lambda: counts["made"] > before + 5)
    lost: list[Any] = counts["lost"]
    return lost


@pytest.mark.parametrize("times", [(1, 2, 3, 4, 5), (6, 8, 10, 14, 20), (30, 50, 80, 120, 200)])
def test_the_new_channel_ends_at_any_moment(
    cluster: Cluster, times: tuple[int, ...], note: Any
) -> None:
    """Steps go on over the old channel, or are lost with the new one; then tensors move again."""
    with session(cluster, _build) as one, session(cluster, _build) as other:
        for number in times:
            lost = _new_channel_ends(cluster, [one, one, other], number)
            for error in lost:
                note(FAILS_AGAIN, type(error).__name__, None, "a step that is made again")
            if not lost:
                note(FAILS_AGAIN, "nothing", None, "all steps, over the former channel")


@pytest.mark.long
def test_threads_that_pause_at_random(tmp_path: Path, delays_library: Path) -> None:
    """No step waits for ever, in whatever order threads get to their locks. A step that is lost before a part
    of it has begun ends like all others."""
    chance = random.Random(5)
    cluster = Cluster.pair(tmp_path, SETTINGS | {"LD_PRELOAD": str(delays_library)})
    try:
        for _ in range(12 if WHOLE else 4):
            with session(cluster, _build) as one, session(cluster, _build) as other:
                for _ in range(5):
                    number = chance.choice((1, 4, 20, 10**6))
                    _new_channel_ends(cluster, [one, one, other], number)
    finally:
        cluster.close()


def test_a_task_is_killed_at_any_moment(tmp_path: Path) -> None:
    """Steps end, and a new session works, whatever the task was doing."""
    chance = random.Random(11)
    cluster = Cluster.pair(tmp_path, SETTINGS)
    try:
        for _ in range(8 if WHOLE else 3):
            opened = Session(cluster, _build)
            _go_over(cluster, opened, "tcp")
            with _steps([opened, opened]) as counts:
                until("no steps", lambda c=counts: c["made"] > 3)
                _inject(cluster, BETTER)
                # When it is killed is what the test varies.
                time.sleep(chance.uniform(0, 0.08))
                cluster.tasks[1].kill()
            abandon(opened.raw)
            cluster.tasks[0].ask(f"faults {WORSE}")
            cluster.restart(1)
            with session(cluster, _build) as opened:
                _go_over(cluster, opened, "tcp")
    finally:
        cluster.close()


def test_eager_operations_and_streams(cluster: Cluster) -> None:
    """None fails, each has the right values, and what is streamed comes once and in order."""
    _inject(cluster, WORSE)
    client = subprocess.Popen(
        [
            warm.python(),
            Path(__file__).with_name("better_client.py"),
            json.dumps(cluster.spec),
            "grpc+rdma",
            BETTER,
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | SETTINGS | {"TF_ENABLE_EAGER_CLIENT_STREAMING_ENQUEUE": "True"},
        text=True,
    )
    try:
        assert client.stdout is not None
        assert client.stdin is not None
        assert client.stdout.readline() == "over tcp\n"
        _inject(cluster, BETTER)
        client.stdin.write("better\n")
        client.stdin.flush()
        said = json.loads(client.stdout.readline())
    finally:
        client.kill()
        client.communicate()
    assert said["came"] == list(range(1, said["sent"] + 1))
    assert said["moves"] >= 1
