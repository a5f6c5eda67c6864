# SPDX-License-Identifier: Apache-2.0
"""The transport suite, and C unit programs that move bytes, over tcp; some of them encrypted."""

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
PROGRAMS = [
    "test_channel",
    "test_fault_storms",
    "test_faults_groups",
    "test_group",
    "test_group_trees",
    "test_region_for",
    "test_store",
]
# Like a network card, tcp reads and writes memory that its owner uses meanwhile. Stores expect
# that: a pull finds out whether its version is whole. ThreadSanitizer is not to look at copies there.
VARIABLES = {"test_store": {"TSAN_OPTIONS": "ignore_interceptors_accesses=1"}}


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


@pytest.fixture
def encrypted(tmp_path: Path) -> dict[str, str]:
    secret = tmp_path / "secret"
    secret.touch(0o600)
    secret.write_text("the secret of the suite")
    return {"RDMATENSOR_SECRET_FILE": str(secret), "RDMATENSOR_ENCRYPT": "on"}


@pytest.mark.timeout(SECONDS + 60)
def test_transport_suite_encrypted(encrypted: dict[str, str]) -> None:
    """What moves bytes. RDMATENSOR_TEST_ENCRYPT=all takes the whole suite."""
    files = [TESTS / "transport"]
    if os.environ.get("RDMATENSOR_TEST_ENCRYPT") != "all":
        files = [TESTS / "transport" / f"test_{name}.py" for name in ("onesided", "notify")]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    said = run([*command, *files], RDMATENSOR_TEST_TRANSPORT="tcp", **encrypted)
    passed = re.search(r"(\d+) passed", said)
    assert passed and int(passed[1]) > 30, said


@pytest.mark.timeout(SECONDS + 60)
@pytest.mark.parametrize("name", PROGRAMS)
def test_c_program(programs: Path, name: str) -> None:
    run([programs / name], RDMATENSOR_TRANSPORTS="tcp", **VARIABLES.get(name, {}))


@pytest.mark.timeout(SECONDS + 60)
def test_c_program_encrypted(programs: Path, encrypted: dict[str, str]) -> None:
    run([programs / "test_channel"], RDMATENSOR_TRANSPORTS="tcp", **encrypted)
