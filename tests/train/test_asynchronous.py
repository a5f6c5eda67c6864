# SPDX-License-Identifier: Apache-2.0
"""Asynchronous synchronizers: models learn from each other, and survive each other."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from support.ports import free_ports
from train.asynchronous_cases import TOGETHER
from train.ranks import Ranks

pytestmark = pytest.mark.timeout(300)
PROGRAM = Path(__file__).with_name("plain.py")
SIZE = 3
EACH = [
    "rt.sync.PullGossip()",
    "rt.sync.PushGossip()",
    "rt.sync.SGP()",
    "rt.sync.EASGD(period=2)",
    "rt.sync.Decoupled(period=10, grace=0.01)",
    "rt.sync.SSP(slack=1)",
]


def _start(case: str, rank: int, port: int, **arguments: Any) -> subprocess.Popen[bytes]:
    place = {"RANK": str(rank), "WORLD_SIZE": str(SIZE), "MASTER_PORT": str(port)}
    return subprocess.Popen(
        [sys.executable, PROGRAM, case, json.dumps(arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | place | {"OPENBLAS_NUM_THREADS": "1"},
    )


@contextmanager
def plain_ranks(case: str, **arguments: Any) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Processes of plain.py; what still runs at the end is killed."""
    (port,) = free_ports(1)
    processes = [_start(case, rank, port, **arguments) for rank in range(SIZE)]
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def line_of(process: subprocess.Popen[bytes]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().decode().strip()


@pytest.fixture(scope="module")
def views() -> list[dict[str, Any]]:
    """What each process knows that lacks a third of the digits."""
    with plain_ranks("views", each=[*EACH, "Deaf()"], steps=400) as processes:
        return [json.loads(line_of(process)) for process in processes]


@pytest.mark.parametrize("name", EACH)
def test_processes_learn_what_others_have_seen(views: list[dict[str, Any]], name: str) -> None:
    assert min(each[name][0] for each in views) > 0.8


def test_a_rule_that_does_not_average_fails_that_bound(views: list[dict[str, Any]]) -> None:
    assert max(each["Deaf()"][0] for each in views) < 0.75


def test_no_weight_of_push_sum_is_lost(views: list[dict[str, Any]]) -> None:
    """Weights that one process halves often before it receives another's lose their last bits in the sum."""
    assert abs(sum(each["rt.sync.SGP()"][1] for each in views) - SIZE) < 1e-9


def test_push_sum_with_turns_is_that_of_its_paper() -> None:
    """To the bit, weights are 1 after each turn, although processes are unequally fast."""
    with plain_ranks("turns", steps=60) as processes:
        answers = [json.loads(line_of(process)) for process in processes]
    for answer in answers:
        assert answer["weights"] == [1.0]
        assert answer["furthest"] < 1e-4


@pytest.mark.long
def test_without_slack_all_move_by_the_mean_change() -> None:
    with plain_ranks("in_step", steps=60) as processes:
        answers = [json.loads(line_of(process)) for process in processes]
    assert max(answers) < 1e-4, answers


@pytest.mark.long
def test_goes_on_from_a_state() -> None:
    """Threads of EASGD, Decoupled and SSP apply what arrives when they come to it. GossipPGA's mean of all
    needs no state, and does not come here, where processes take turns."""
    gossip = "rt.sync.GossipPGA(average_every=100, period=2)"
    each = [gossip, *(name.replace("period=10", "period=4") for name in EACH)]
    with plain_ranks("resume", each=each, steps=10) as processes:
        answers = [json.loads(line_of(process)) for process in processes]
    for answer in answers:
        assert all(equal for equal, _ in answer.values()), answer
        for name in (gossip, "rt.sync.PullGossip()", "rt.sync.PushGossip()", "rt.sync.SGP()"):
            assert answer[name][1], (name, answer)


@pytest.mark.parametrize(
    ("doomed", "tf_config"), [pytest.param(2, False, marks=pytest.mark.long), (0, True)]
)
def test_fit_goes_on_without_a_killed_process_until_it_comes_back(
    tmp_path: Path, doomed: int, tf_config: bool
) -> None:
    """Rank 0 finds the others where TF_CONFIG tells their addresses."""
    arguments: dict[str, Any] = {"doomed": doomed, "backup": str(tmp_path / "backup")}
    with Ranks("fit_with_a_kill", SIZE, tmp_path, tf_config=tf_config, **arguments) as ranks:
        ranks.wait_for(doomed, "training")
        ranks.kill(doomed)
        ranks.start_again(doomed)
        answers = [ranks.answer(rank) for rank in range(SIZE)]
    for rank, answer in enumerate(answers):
        assert "error" not in answer, (answer, ranks.log(rank))
        assert answer["together"] == TOGETHER, ranks.log(rank)
        assert answer["slowest"] < 10
        if rank != doomed:
            assert answer["steps"] == answer["batches"]
            assert any(name.startswith(f"rank_{rank}.kept_") for name in answer["kept"])
    back = answers[doomed]
    assert "cannot come back" in back["refused"]
    assert back["steps"] > back["batches"]  # it counts on
    assert back["epochs"][0] == (back["steps"] - back["batches"]) // (1072 // 16)
    assert back["accuracy"] > 0.6  # in its first epoch


def test_a_killed_process_comes_back() -> None:
    each = [name for name in EACH if "SSP" not in name]
    doomed, (port,) = 1, free_ports(1)
    arguments: dict[str, Any] = {"each": each, "steps": 150, "doomed": doomed}
    processes = [_start("come_back", rank, port, **arguments, again=False) for rank in range(SIZE)]
    try:
        assert line_of(processes[doomed]) == "training"
        processes[doomed].kill()
        processes[doomed].communicate()
        processes[doomed] = _start("come_back", doomed, port, **arguments, again=True)
        answers = [json.loads(line_of(process)) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    assert min(answers[doomed]["begun"]) > 0.5  # others had trained what it began with
    for answer in answers:
        assert answer["together"] == arguments["steps"]
        assert min(answer["accuracy"]) > 0.85
        assert answer["slowest"] < 10


@pytest.mark.long
def test_a_stopped_process_is_reached_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither side can wait for the other to connect: each has lost the other."""
    monkeypatch.setenv("RDMATENSOR_TRANSPORTS", "tcp")
    monkeypatch.setenv("RDMATENSOR_DEADLINE_MS", "3000")
    each = [name for name in EACH if "SSP" not in name]
    doomed, steps = 1, 50
    with plain_ranks("stop", each=each, steps=steps, doomed=doomed) as processes:
        assert line_of(processes[doomed]) == "training"
        processes[doomed].send_signal(signal.SIGSTOP)
        others = [process for rank, process in enumerate(processes) if rank != doomed]
        assert [line_of(process) for process in others] == ["parted"] * len(others)
        processes[doomed].send_signal(signal.SIGCONT)
        answers = [json.loads(line_of(process)) for process in processes]
    for answer in answers:
        assert answer["together"] == steps
        assert min(answer["lost"]) > 0
        assert min(answer["accuracy"]) > 0.85


@pytest.mark.long
def test_a_killed_process_costs_the_others_no_step() -> None:
    steps, doomed, each = 300, 2, [*EACH, "rt.sync.SGP(wait=0.2)"]
    with plain_ranks("kill", each=each, steps=steps, doomed=doomed) as processes:
        assert line_of(processes[doomed]) == "training"
        processes[doomed].kill()
        answers = [
            json.loads(line_of(process)) for rank, process in enumerate(processes) if rank != doomed
        ]
    for answer in answers:
        assert answer["steps"] == [steps] * len(each)
        assert min(answer["accuracy"]) > 0.85
        assert answer["slowest"] < 10
    # Push-sum loses what the dead process held, and what was on its way to it.
    for name in ("rt.sync.SGP()", "rt.sync.SGP(wait=0.2)"):
        assert 0 < sum(answer["weight"][each.index(name)] for answer in answers) <= SIZE
