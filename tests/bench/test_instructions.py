# SPDX-License-Identifier: Apache-2.0
"""The hot paths of the C library take no more instructions than their budgets."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from support import instructions

pytestmark = pytest.mark.skipif(
    not (shutil.which("valgrind") and shutil.which("cc")),
    reason="no valgrind: apt install valgrind",
)


@pytest.fixture(scope="module")
def counts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, float]:
    return instructions.count(instructions.build(tmp_path_factory.mktemp("paths")))


def test_hot_paths_keep_their_budgets(counts: dict[str, float]) -> None:
    assert instructions.over(counts, instructions.read_budgets()) == []


def test_the_guard_fails_when_a_budget_is_exceeded(counts: dict[str, float]) -> None:
    """A budget that is exceeded is told, and no budget is far above what its path takes."""
    assert counts["batch"] > 10 * counts["write"]
    tight = {path: used * 0.95 for path, used in counts.items()}
    told = instructions.over(counts, tight)
    assert [line.partition(":")[0] for line in told] == list(counts)
    assert "the budget is" in told[0]
    budgets = instructions.read_budgets()
    assert set(budgets) == set(counts)
    assert all(budgets[path] < 1.3 * used for path, used in counts.items())


def test_counts_repeat(counts: dict[str, float], tmp_path: Path) -> None:
    assert instructions.count(instructions.build(tmp_path)) == pytest.approx(counts, rel=0.01)
