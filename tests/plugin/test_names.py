# SPDX-License-Identifier: Apache-2.0
"""A task's name belongs to a session: clusters that sessions bring with them, eager clients whose cluster
names servers otherwise than they name themselves, and clients that no task can reach."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from support import warm


def _run(scenario: str) -> Any:
    run = subprocess.run(
        [warm.python(), Path(__file__).with_name("renamed.py"), scenario],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert run.returncode == 0, run.stderr[-4000:]
    return json.loads(run.stdout.splitlines()[-1])["paths"]


def _sent(paths: Any) -> int:
    return sum(path["sent_tensors"] for name, path in paths.items() if name != "rpc")


@pytest.mark.parametrize(
    ("scenario", "tensors"),
    [("propagated", 30), ("two_sessions", 60), ("unreachable_client", 6)],
)
def test_nothing_goes_by_rpc(scenario: str, tensors: int) -> None:
    paths = _run(scenario)
    assert paths["rpc"]["sent_tensors"] == 0
    assert _sent(paths) >= tensors


@pytest.mark.parametrize("scenario", ["lost_channel", "lost_for_a_while"])
def test_client_that_no_task_reaches_survives_the_loss_of_its_channels(scenario: str) -> None:
    assert _sent(_run(scenario)) > 0


def test_task_that_becomes_another_process() -> None:
    assert _sent(_run("replaced")) > 0


def test_tasks_that_all_become_other_processes_need_no_rpc() -> None:
    """POLICY=rdma: two processes contend for a name until the sender knows which one has it now."""
    paths = _run("both_replaced")
    assert _sent(paths) > 0
    assert paths["rpc"]["sent_tensors"] == 0


def test_client_of_a_task_without_the_plugin() -> None:
    _run("stock_task")
