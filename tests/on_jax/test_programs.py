# SPDX-License-Identifier: Apache-2.0
"""Programs of JAX in several processes, as `rdmatensor launch --jax` starts them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from support import ROOT

pytest.importorskip("jax", reason="jax is not installed: pip install --group test")
HERE = ROOT / "tests/on_jax"
# Sums 1, 2 over the devices of each process.
SEVERAL_DEVICES = """
import jax
jax.config.update("jax_num_cpu_devices", 2)
jax.distributed.initialize()
import numpy as np
from jax.sharding import Mesh, PartitionSpec as P
mesh = Mesh(np.array(jax.devices()).reshape(-1, 2), ("process", "x"))
both = {"in_specs": P(None, "x"), "out_specs": P()}
total = jax.jit(jax.shard_map(lambda v: jax.lax.psum(v, "x"), mesh=mesh, **both))
try:
    result = total(np.array([[1.0, 2.0]], np.float32))
    print("the sum is", float(np.asarray(result.addressable_shards[0].data)[0, 0]))
except Exception as error:
    print(f"{type(error).__name__}: {error}")
"""


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


@pytest.mark.parametrize("own", [None, "glibc.malloc.arena_max=4"], ids=["unset", "set"])
def test_pages_are_large_unless_the_user_says(
    own: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "program.py"
    program.write_text("import os\nprint(os.environ['GLIBC_TUNABLES'])\n")
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    if own:
        monkeypatch.setenv("GLIBC_TUNABLES", own)
    assert (own or "glibc.malloc.hugetlb=1") in launch(str(program), 1)


@pytest.mark.long
def test_keras() -> None:
    said = launch(str(HERE / "keras_fit.py"), 2)
    for rank in range(2):
        assert f"process {rank} of 2 has the model of one process" in said


def test_example() -> None:
    said = launch(str(ROOT / "examples/jax_psum.py"), 2)
    assert "weights [0. 1. 2. 3. 4. 5. 6. 7.]" in said, said


def test_several_devices(tmp_path: Path) -> None:
    """A process that is alone may have several; processes that work together may not, and are told so."""
    program = tmp_path / "devices.py"
    program.write_text(SEVERAL_DEVICES)
    assert "the sum is 3.0" in launch(str(program), 1)
    said = launch(str(program), 2)
    assert said.count("Unsupported: a process has several devices") == 2, said
