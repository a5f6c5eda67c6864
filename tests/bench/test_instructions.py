# SPDX-License-Identifier: Apache-2.0
"""The hot paths of the C library and the messages of calls take no more instructions than their budgets.

tests/softroce has those of verbs."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from support import instructions

pytestmark = pytest.mark.skipif(
    not (shutil.which("valgrind") and shutil.which("cc")),
    reason="no valgrind: apt install valgrind",
)


@pytest.fixture(scope="module", params=["shm", "tcp"])
def transport(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return instructions.build(tmp_path_factory.mktemp("paths"))


@pytest.fixture(scope="module")
def counts(program: Path, transport: str) -> dict[str, float]:
    return instructions.count(program, transport)


def test_hot_paths_keep_their_budgets(counts: dict[str, float], transport: str) -> None:
    assert instructions.over(counts, instructions.read_budgets(transport)) == []


def test_the_guard_fails_when_a_budget_is_exceeded(
    counts: dict[str, float], transport: str
) -> None:
    """A budget that is exceeded is told, and no budget is far above what its path takes."""
    assert counts["batch"] > 10 * counts["write"]
    tight = {path: used * 0.95 for path, used in counts.items()}
    told = instructions.over(counts, tight)
    assert [line.partition(":")[0] for line in told] == list(counts)
    assert "the budget is" in told[0]
    budgets = instructions.read_budgets(transport)
    assert set(budgets) == set(counts)
    # What the posting thread does takes the same each time. The fewer pieces notifications arrive in, the
    # less a poll takes.
    posted = instructions.POSTED[transport]
    assert [path for path in posted if budgets[path] >= 1.3 * counts[path]] == []


@pytest.mark.timeout(300)
def test_calls_keep_their_budgets(programs: Path) -> None:
    program = programs / "call_paths"
    if not program.exists():
        pytest.skip("the TensorFlow plugin is not built")
    counts = instructions.count(program, "calls")
    budgets = instructions.read_budgets("calls")
    assert instructions.over(counts, budgets) == []
    assert set(budgets) == set(counts)
    assert [path for path, used in counts.items() if budgets[path] >= 1.3 * used] == []


def test_counts_repeat(program: Path) -> None:
    """Over shm, where chance decides nothing."""
    first, again = (instructions.count(program) for _ in range(2))
    assert again == pytest.approx(first, rel=0.01)
