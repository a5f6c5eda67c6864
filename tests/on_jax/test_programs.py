# SPDX-License-Identifier: Apache-2.0
"""Programs of JAX in several processes, as `rdmatensor launch --jax` starts them."""

from __future__ import annotations

import subprocess
import sys

import pytest

from support import ROOT

pytest.importorskip("jax", reason="jax is not installed: pip install --group test")
HERE = ROOT / "tests/on_jax"


def launch(program: str, size: int) -> str:
    """What the processes print. They have to end well."""
    command = [sys.executable, "-m", "rdmatensor", "launch", "--jax", "-n", str(size), program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("size", [2, 4])
def test_values(size: int) -> None:
    said = launch(str(HERE / "values.py"), size)
    for rank in range(size):
        assert f"process {rank} of {size} has compared everything" in said


@pytest.mark.long
def test_keras() -> None:
    said = launch(str(HERE / "keras_fit.py"), 2)
    for rank in range(2):
        assert f"process {rank} of 2 has the model of one process" in said


def test_example() -> None:
    said = launch(str(ROOT / "examples/jax_psum.py"), 2)
    assert "weights [0. 1. 2. 3. 4. 5. 6. 7.]" in said, said
