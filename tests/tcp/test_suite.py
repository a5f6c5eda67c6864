# SPDX-License-Identifier: Apache-2.0
"""The transport suite, and C unit programs that move bytes, over tcp."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from support import TESTS

SECONDS = 900
UNMAPPED = 4  # tests of memory that is used in place
PROGRAMS = ["test_channel", "test_region_for", "test_fault_storms", "test_faults_groups"]


def run(command: list[str | Path], **variables: str) -> str:
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **variables},
    )
    assert done.returncode == 0, f"exit status {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.timeout(SECONDS + 60)
def test_transport_suite() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider"]
    said = run([*command, TESTS / "transport"], RDMATENSOR_TEST_TRANSPORT="tcp")
    passed = re.search(r"(\d+) passed", said)
    assert passed and int(passed[1]) > 200, said
    skips = re.findall(r"SKIPPED \[(\d+)\] \S+: transport tcp cannot map remote memory", said)
    assert sum(map(int, skips)) == UNMAPPED, said


@pytest.mark.timeout(SECONDS + 60)
@pytest.mark.parametrize("name", PROGRAMS)
def test_c_program(programs: Path, name: str) -> None:
    run([programs / name], RDMATENSOR_TRANSPORTS="tcp")
