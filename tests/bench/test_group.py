# SPDX-License-Identifier: Apache-2.0
"""bench/bench_group.py: what is here is measured, what is not is named."""

from __future__ import annotations

import sys

import pytest

bench_group = pytest.importorskip("bench_group", reason="it needs the extra bench")

SIZE = bench_group.Size(4 << 10, 2, 5, 1.0)


def test_every_library_is_measured_or_missing() -> None:
    run = bench_group.measure(list(bench_group.LIBRARIES), 2, [SIZE], True)
    missing = {each.name for each in run.missing}
    assert all(each.remedy for each in run.missing)
    found = {each.way for each in run.results if each.case == "in place"}
    assert found == {"rdmatensor, registered", "rdmatensor, any array"} | (
        {"gloo", "OpenMPI"} - missing
    )
    for each in run.results:
        assert len(each.turns) == 5
        assert len(each.processes) == 2
        assert each.processes[0].peak_bytes > 0
        assert each.rival not in missing


def test_a_rival_that_does_not_start_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with an mpi4py that finds no library of its own."""

    def broken(library: str, address: str, size: int, *more: object) -> list[list[str]]:
        if library != bench_group.GLOO:
            return commands(library, address, size, *more)
        return [[sys.executable, "-c", "raise SystemExit(1)"]] * size

    commands = bench_group.commands
    monkeypatch.setattr(bench_group, "commands", broken)
    monkeypatch.setattr(bench_group, "missing", lambda library, python: None)
    libraries = [bench_group.OURS, bench_group.GLOO]
    run = bench_group.measure(libraries, 2, [SIZE], True)
    assert [each.name for each in run.missing] == [bench_group.GLOO]
    assert "ended" in run.missing[0].why
    assert {each.way.partition(",")[0] for each in run.results} == {bench_group.OURS}
