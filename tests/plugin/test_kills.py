# SPDX-License-Identifier: Apache-2.0
"""The short form of `make kills`: a task is killed at a random moment of a step, and nothing hangs."""

from __future__ import annotations

from pathlib import Path

import pytest

from plugin import killing


@pytest.mark.timeout(240)
def test_a_task_killed_in_a_step(tmp_path: Path) -> None:
    said = killing.run(tmp_path, 5, 20261122)
    assert sum(said.values()) == 5
