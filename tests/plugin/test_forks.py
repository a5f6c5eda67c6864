# SPDX-License-Identifier: Apache-2.0
"""Processes that fork while they have a server, as Python's data loaders do: a child's memory is its own."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from support import warm

PROTOCOLS = ["grpc", "grpc+rdma"]
# What each scenario of forking.py says of values, whatever carries the tensors.
EXPECTED: dict[str, Any] = {
    "plain": [
        [[[7.0]] * 8, [[8.0]] * 4, [[9.0]] * 8],
        [[1.0]] * 4,
        [[1.0]] * 8,
    ],
    "pool": [[[5.0], [6.0], [6.0]], [[1.0], [1.0]]],
    "py_function": [[[[6.0], [2.0]]], [[3.0]], [[1.0], [1.0]]],
    "grandchild": [[[[[2.0]], [[12.0]]], [[2.0]]], [[1.0]]],
    "programs": [["here\n", "here\n"], [[1.0], [1.0]]],
}


def _run(protocol: str, *scenarios: str, **variables: str) -> Any:
    preloaded = {name: variables[name] for name in variables if name == "LD_PRELOAD"}
    done = subprocess.run(
        [warm.python(**preloaded), Path(__file__).with_name("forking.py"), protocol, *scenarios],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_children_write_memory_of_their_own(protocol: str) -> None:
    assert _run(protocol, *EXPECTED) == EXPECTED


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_children_give_back_nothing_that_their_parent_received(protocol: str) -> None:
    """The sender would write the next tensor into the place of one that the parent still has."""
    values = [[1.0], [2.0]]
    assert _run(protocol, "received") == {"received": [values, values]}


def test_children_wait_for_no_lock_of_the_allocator(faults_library: Path, tmp_path: Path) -> None:
    hold = str(tmp_path / "hold")
    seen = _run("grpc+rdma", "locked", LD_PRELOAD=str(faults_library), FAULTS_HOLD_ALLOC=hold)
    assert seen == {"locked": [[[7.0]], False, [[1.0]]]}
