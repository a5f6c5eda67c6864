# SPDX-License-Identifier: Apache-2.0
"""A short run of chaos.py, with another seed each time, which a failure names; SUITE=chaos runs longer."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest

SECONDS = {"api": 4, "gossip": 3, "training": 8}


@pytest.mark.parametrize(
    "part", ["api", "gossip", pytest.param("training", marks=pytest.mark.long)]
)
def test_everything_at_random(part: str) -> None:
    if part == "training" and not importlib.util.find_spec("tensorflow"):
        pytest.skip("TensorFlow is not installed")
    done = subprocess.run(
        [sys.executable, "-m", "faults.chaos", "--seconds", str(SECONDS[part]), "--parts", part],
        capture_output=True,
        text=True,
        timeout=110,
    )
    print(done.stdout)
    assert done.returncode == 0, f"{done.stdout[-6000:]}\n{done.stderr[-6000:]}"
    assert "fault: " in done.stdout, "no fault was injected"
    assert part != "api" or "group: ok, new trees" in done.stdout
