# SPDX-License-Identifier: Apache-2.0
"""Bare sockets, with which tcp is compared, move as many bytes as a step."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from bench_tensorflow import Bare
from harness import Bench
from networks import LOOPBACK
from programs import first_line, run, started
from record import Environment, Run
from support import ROOT
from tf_cases import MIB, transfer
from tf_measure import compare


@pytest.fixture
def program(tmp_path: Path) -> Path:
    if not shutil.which("cc"):
        pytest.skip("no compiler")
    made = tmp_path / "sockets"
    subprocess.run(["cc", "-O2", "-o", made, ROOT / "bench" / "sockets.c"], check=True)
    return made


def test_bare_sockets_move_the_bytes_of_each_step(program: Path) -> None:
    bench = Bench(Run("steps", Environment.here()), quick=True)
    bare = Bare(program, LOOPBACK)
    for count in (3, 1):
        compare(bench, "suite", [bare], transfer(count, MIB, steps=4, block=2))
        assert len(bench.run.results.pop().samples) == 4
        assert bench.run.faults == []


def test_turns_are_timed_for_one_client_after_another(program: Path) -> None:
    with started([program, "serve", "turn", "127.0.0.1", 8]) as server:
        port = first_line(server)
        for _ in range(2):
            times = run([program, "turn", "127.0.0.1", port, 8, 3, 10]).split()
            assert len(times) == 3
            assert min(map(float, times)) > 0
