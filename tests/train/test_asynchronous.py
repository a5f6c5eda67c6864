# SPDX-License-Identifier: Apache-2.0
"""Asynchronous synchronizers: models learn from each other, and survive each other."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from support.ports import free_ports
from train.ranks import Ranks

pytestmark = pytest.mark.timeout(300)
PROGRAM = Path(__file__).with_name("plain.py")
SIZE = 3
EACH = [
    "rt.PullGossip()",
    "rt.PushGossip()",
    "rt.SGP()",
    "rt.EASGD(period=2)",
    "rt.Decoupled(period=10, grace=0.01)",
    "rt.SSP(slack=1)",
]


@contextmanager
def plain_ranks(case: str, **arguments: Any) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Processes of plain.py; what still runs at the end is killed."""
    (port,) = free_ports(1)
    processes = []
    for rank in range(SIZE):
        place = {"RANK": str(rank), "WORLD_SIZE": str(SIZE), "MASTER_PORT": str(port)}
        processes.append(
            subprocess.Popen(
                [sys.executable, PROGRAM, case, json.dumps(arguments)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=os.environ | place | {"OPENBLAS_NUM_THREADS": "1"},
            )
        )
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
    """All are multiples of powers of two, so sums are exact."""
    assert sum(each["rt.SGP()"][1] for each in views) == SIZE


def test_fit_goes_on_without_a_killed_process(tmp_path: Path) -> None:
    backup = tmp_path / "backup"
    doomed = 2
    with Ranks("fit_with_a_kill", SIZE, tmp_path, doomed=doomed, backup=str(backup)) as ranks:
        ranks.wait_for(doomed, "training")
        ranks.kill(doomed)
        answers = [ranks.answer(rank) for rank in range(SIZE) if rank != doomed]
    for rank, answer in enumerate(answers):
        assert "error" not in answer, (answer, ranks.log(rank))
        assert answer["steps"] == 5 * 1072 // 16
        assert answer["slowest"] < 10
        assert {"rank_0.npz", "rank_1.npz"} <= set(answer["kept"])


def test_a_killed_process_costs_the_others_no_step() -> None:
    steps, doomed = 300, 2
    with plain_ranks("kill", each=EACH, steps=steps, doomed=doomed) as processes:
        assert line_of(processes[doomed]) == "training"
        processes[doomed].kill()
        answers = [
            json.loads(line_of(process)) for rank, process in enumerate(processes) if rank != doomed
        ]
    for answer in answers:
        assert answer["steps"] == [steps] * len(EACH)
        assert min(answer["accuracy"]) > 0.85
        assert answer["slowest"] < 10
    # Push-sum loses what the dead process held, and what was on its way to it.
    assert 0 < sum(answer["weight"][EACH.index("rt.SGP()")] for answer in answers) <= SIZE
