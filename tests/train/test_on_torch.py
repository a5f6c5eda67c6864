# SPDX-License-Identifier: Apache-2.0
"""Keras on PyTorch in several processes is Keras in one, with the batches of all."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from support import ROOT

pytest.importorskip("torch", reason="torch is not installed: pip install --group test")
pytestmark = pytest.mark.timeout(300)
CASES = Path(__file__).with_name("on_torch_cases.py")
PROGRAM = (
    "equal weighed synchronizers statistics costs stops stops_between table data_sets misuse lost"
)


def test_every_case() -> None:
    """In one program, because importing takes longer than all of them."""
    command = [sys.executable, "-m", "rdmatensor", "launch", "-n", "2", str(CASES), PROGRAM]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    for case in PROGRAM.split():
        ended = done.stdout.count(f"{case} has ended")
        assert ended == (1 if case == "lost" else 2), (case, done.stdout + done.stderr)


@pytest.mark.long
def test_example() -> None:
    command = [sys.executable, "-m", "rdmatensor", "launch", "-n", "2", "keras_torch.py"]
    done = subprocess.run(
        command, cwd=ROOT / "examples", capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all processes have one model" in done.stdout
