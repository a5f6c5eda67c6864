# SPDX-License-Identifier: Apache-2.0
"""One process fails: the others learn it at once, and by name; or it is killed, and training is resumed."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.waits import AT_ONCE, PATIENCE
from train.ranks import Ranks, run

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def failures(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    folder = tmp_path_factory.mktemp("failing")
    return run("local_failures", 3, folder, meeting=str(folder))


@pytest.mark.parametrize(
    "how, kind, cause",
    [
        ("shape", "InvalidArgumentError", "cannot be cut into 3 equal parts"),
        ("memory", "ResourceExhaustedError", "no memory for"),
    ],
)
def test_a_part_that_cannot_start(failures: list[Any], how: str, kind: str, cause: str) -> None:
    for rank, answer in enumerate(each[how] for each in failures):
        assert answer["kind"] == kind, answer
        assert cause in answer["says"]
        assert rank == 1 or "member 1 failed" in answer["says"]
        assert answer["seconds"] < AT_ONCE  # the group's time-out is ten minutes


def test_another_node_fails_while_an_operation_waits(failures: list[Any]) -> None:
    answers = [each["node"] for each in failures]
    assert "another node" in answers[1]["says"]
    for answer in (answers[0], answers[2]):
        assert answer["kind"] == "CancelledError", answer
        assert "member 1 failed" in answer["says"] and "cancelled" in answer["says"]
    assert max(answer["seconds"] for answer in answers) < AT_ONCE


def test_the_group_goes_on(failures: list[Any]) -> None:
    assert [each["after"] for each in failures] == [6.0] * 3


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("undisturbed")
    return run("kill_and_resume", 2, folder, backup=str(folder))[0]


@pytest.mark.parametrize(
    "dies, dead, kept", [pytest.param("step", 1, 2, marks=pytest.mark.long), ("files", 0, 1)]
)
def test_resumes_after_a_kill(
    tmp_path: Path, undisturbed: Any, dies: str, dead: int, kept: int
) -> None:
    backup = str(tmp_path / "backup")
    with Ranks("kill_and_resume", 2, tmp_path, backup=backup, dies=dies) as ranks:
        answer = ranks.answer(1 - dead)
        assert answer.get("kind") == "AbortedError", answer
        assert f"member {dead}" in answer["says"] or f"rank {dead}" in answer["says"]
        assert ranks.processes[dead].wait(PATIENCE) == -signal.SIGKILL
    for answer in run("kill_and_resume", 2, tmp_path, backup=backup):
        np.testing.assert_allclose(answer["losses"], undisturbed["losses"][kept:], atol=1e-6)
        np.testing.assert_allclose(answer["weights"], undisturbed["weights"], atol=1e-6)
