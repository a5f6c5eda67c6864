# SPDX-License-Identifier: Apache-2.0
"""The page of failures has a row for every fault, wherever it can happen."""

from __future__ import annotations

from pathlib import Path

import pytest

from support import failure_table
from support.failure_table import Row


def test_every_fault_has_its_rows(root: Path) -> None:
    assert failure_table.missing((root / "docs/failure.md").read_text()) == []


def test_missing_rows_are_noticed(root: Path) -> None:
    page = (root / "docs/failure.md").read_text()
    lines = [line for line in page.splitlines() if not line.startswith("| fork | verbs |")]
    assert failure_table.missing("\n".join(lines)) == ["fork on verbs"]


def test_rows_are_kept_once_with_the_longest_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes = tmp_path / "notes"
    monkeypatch.setenv(failure_table.VARIABLE, str(notes))
    for seconds in (0.5, 2.0, 1.0):
        failure_table.note(Row("fork", "shm", "a | b", seconds, "all"))
    failure_table.note(Row("process killed", "verbs", "gone", None, "others"))
    with pytest.raises(ValueError):
        failure_table.note(Row("host kiled", "shm", "gone", 1.0, "nothing"))
    rows = failure_table.read(notes.read_text().splitlines())
    assert [(row.fault, row.seconds) for row in rows] == [("process killed", None), ("fork", 2.0)]
    assert "| process killed | verbs | gone |  | others |" in failure_table.render(rows)


def test_what_differs_from_run_to_run_is_left_out() -> None:
    error = ConnectionError("the connection to box:4711 at 127.0.0.1:35213 is lost")
    assert failure_table.describe(error) == (
        "ConnectionError: the connection to PEER at HOST:PORT is lost"
    )
