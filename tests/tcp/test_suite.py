# SPDX-License-Identifier: Apache-2.0
"""The transport suite, and C unit programs that move bytes, over tcp; some of them encrypted."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from support import TESTS, WHOLE, failure_table

SECONDS = 900
UNMAPPED = 4 if WHOLE else 1  # tests of memory that is used in place
PROGRAMS = [
    "test_atomics",
    "test_channel",
    "test_fault_storms",
    "test_group",
    "test_store",
]
# Of them encrypted.
ENCRYPTED = ["test_atomics", "test_channel", "test_group", "test_store"]
if WHOLE:
    PROGRAMS += ["test_faults_groups", "test_group_trees", "test_region_for"]
    ENCRYPTED = PROGRAMS
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
    command += [] if WHOLE else ["-m", "not any_transport"]
    said = run([*command, TESTS / "transport"], RDMATENSOR_TEST_TRANSPORT="tcp")
    passed = re.search(r"(\d+) passed", said)
    assert passed and int(passed[1]) > (200 if WHOLE else 60), said
    skips = re.findall(r"SKIPPED \[(\d+)\] \S+: transport tcp cannot map remote memory", said)
    assert sum(map(int, skips)) == UNMAPPED, said


@pytest.fixture
def encrypted(tmp_path: Path) -> dict[str, str]:
    secret = tmp_path / "secret"
    secret.touch(0o600)
    secret.write_text("the secret of the suite")
    # The table of failures is that of connections as they are by default.
    settings = {"RDMATENSOR_SECRET_FILE": str(secret), "RDMATENSOR_ENCRYPT": "on"}
    return {**settings, failure_table.VARIABLE: ""}


@pytest.mark.timeout(SECONDS + 60)
def test_transport_suite_encrypted(encrypted: dict[str, str]) -> None:
    """What moves bytes, and what ends that, as on verbs."""
    chosen: list[str | Path] = [TESTS / "transport"]
    if not WHOLE:
        names = ("onesided", "atomics", "notify", "group", "store", "failures")
        chosen = [TESTS / "transport" / f"test_{name}.py" for name in names]
        chosen += ["-m", "not any_transport", "-k", "not large_arrays"]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    said = run([*command, *chosen], RDMATENSOR_TEST_TRANSPORT="tcp", **encrypted)
    passed = re.search(r"(\d+) passed", said)
    assert passed and int(passed[1]) > (200 if WHOLE else 30), said


@pytest.mark.timeout(SECONDS + 60)
@pytest.mark.parametrize("name", PROGRAMS)
def test_c_program(programs: Path, name: str) -> None:
    run([programs / name], RDMATENSOR_TRANSPORTS="tcp", **VARIABLES.get(name, {}))


@pytest.mark.timeout(SECONDS + 60)
@pytest.mark.parametrize("name", ENCRYPTED)
def test_c_program_encrypted(programs: Path, encrypted: dict[str, str], name: str) -> None:
    variables = {**encrypted, **VARIABLES.get(name, {})}
    run([programs / name], RDMATENSOR_TRANSPORTS="tcp", **variables)
