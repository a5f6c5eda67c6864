# SPDX-License-Identifier: Apache-2.0
"""The short form of SUITE=kills: a task is killed at a random moment, and nothing hangs or is lost."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from plugin import killing
from support import warm


@pytest.mark.timeout(240)
def test_a_task_killed_in_a_step(tmp_path: Path) -> None:
    said = killing.run(tmp_path, 5, 20261122)
    assert sum(said.values()) == 5


@pytest.mark.timeout(300)
def test_a_worker_of_a_coordinator_killed() -> None:
    program = [warm.python(), "-m", "plugin.killing_workers", "--times", "2", "--seed", "20261125"]
    done = subprocess.run(program, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    assert "every closure gave its value" in done.stdout
