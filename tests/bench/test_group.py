# SPDX-License-Identifier: Apache-2.0
"""bench/bench_group.py: what is here is measured, what is not is named."""

from __future__ import annotations

import sys

import pytest

import bench_group
from harness import Bench
from record import Environment, Run


def measured() -> Run:
    bench = Bench(Run("groups", Environment.here()), quick=True, only="4 KiB")
    bench_group.measure(bench)
    return bench.run


@pytest.mark.long
def test_every_library_is_measured_or_missing() -> None:
    run = measured()
    missing = {each.name for each in run.missing}
    assert all(each.remedy for each in run.missing)
    found = {each.way for each in run.results if each.case == "in place"}
    assert found == {"rdmatensor, registered", "rdmatensor, any array"} | (
        {"gloo", "OpenMPI"} - missing
    )
    for each in run.results:
        assert len(each.samples) == 50  # of five turns
        assert each.rival not in missing


def test_a_rival_that_does_not_start_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with an mpi4py that finds no library of its own."""

    def broken(library: str, size: int, *more: object) -> list[list[str]]:
        if library == bench_group.OURS:
            return commands(library, size, *more)
        return [[sys.executable, "-c", "raise SystemExit(1)"]] * size

    commands = bench_group.commands
    monkeypatch.setattr(bench_group, "commands", broken)
    monkeypatch.setattr(Bench, "has", lambda *_: True)
    run = measured()
    assert bench_group.GLOO in [each.name for each in run.missing]
    assert "exited with status 1" in run.missing[0].why
    assert {each.way.partition(",")[0] for each in run.results} == {bench_group.OURS}
