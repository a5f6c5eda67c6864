# SPDX-License-Identifier: Apache-2.0
"""The MPI for jaxlib by itself: its symbols, and calls without JAX."""

from __future__ import annotations

import ctypes
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import rdmatensor
from support import ROOT

LIBRARY = Path(rdmatensor.__file__).with_name("librdmatensor_mpi.so")


def test_calls() -> None:
    program = str(ROOT / "tests/on_jax/library.py")
    command = [sys.executable, "-m", "rdmatensor", "launch", "-n", "2", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert "process 0 is done" in said and "process 1 is done" in said, said


def test_every_name_that_jaxlib_looks_up() -> None:
    """One that is missing would end the process when jaxlib is loaded."""
    found = find_spec("jaxlib")
    if found is None or not found.submodule_search_locations:
        pytest.skip("jaxlib is not installed: pip install --group test")
    code = Path(next(iter(found.submodule_search_locations)), "libjax_common.so").read_bytes()
    pattern = rb"\0((?:MPIX?ABI_|mpiwrapper_|mpiabi_version_)\w+)(?=\0)"
    names = {name.decode() for name in re.findall(pattern, code)}
    assert len(names) > 600
    library = ctypes.CDLL(str(LIBRARY))
    assert [name for name in sorted(names) if not hasattr(library, name)] == []
