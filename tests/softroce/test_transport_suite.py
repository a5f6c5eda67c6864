# SPDX-License-Identifier: Apache-2.0
"""The transport suite and the C unit programs on real verbs, in a guest."""

from __future__ import annotations

import json
import os
import re
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path

import pytest

from rdmatensor.softroce import Lab
from support import WHOLE, failure_table

TESTS = Path(__file__).resolve().parents[1]
SECONDS = 4000.0 if WHOLE else 1500.0
# Why tests are skipped over verbs in a guest, and how many are: here, and in the whole suite.
SKIPS = {
    "transport verbs cannot map remote memory": (1, 4),
    "only shm reads the memory of other processes": (1, 1),
    "cupy needs a GPU: make gpu": (0, 2),
    "torch needs a GPU: make gpu": (0, 2),
}
PROGRAMS = [
    "test_atomics",
    "test_channel",
    "test_fault_storms",
    "test_group",
    "test_group_pushes",
    "test_region_for",
    "test_store",
    "test_verbs_library",
    "test_verbs_ports",
    "test_verbs_removed",
    "test_verbs_registration",
]
if WHOLE:
    PROGRAMS += ["test_faults", "test_group_checksum", "test_group_failures", "test_group_meeting",
                 "test_group_trees"]  # fmt: skip


def skips(report: Path) -> Counter[str]:
    """Why tests were skipped, and how often."""
    reasons = (each.get("message", "") for each in ElementTree.parse(report).iter("skipped"))
    return Counter(reasons)


def test_transport_suite(lab: Lab) -> None:
    report, rows = lab.shared / "transport.xml", lab.shared / "failures"
    rows.touch()
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--durations=10"]
    if not WHOLE:
        command += ["-m", "not any_transport"]
    done = lab.hosts[0].run(
        [*command, f"--junitxml={report}", TESTS / "transport"],
        env={
            "RDMATENSOR_TEST_TRANSPORT": "verbs",
            failure_table.VARIABLE: str(rows),
            "PYTHONDONTWRITEBYTECODE": "1",
        },
        timeout=SECONDS,
        check=False,
    )
    print(done.stdout)
    assert done.returncode == 0, f"in the guest:\n{done.stdout}\n{done.stderr}"
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed and int(passed[1]) > (200 if WHOLE else 60), done.stdout
    assert skips(report) == Counter({why: counts[WHOLE] for why, counts in SKIPS.items()})
    for line in rows.read_text().splitlines():
        failure_table.note(failure_table.Row(**json.loads(line)))


@pytest.mark.parametrize("name", PROGRAMS)
def test_c_program_on_verbs(lab: Lab, programs: Path, name: str) -> None:
    """With a device there is nothing to skip."""
    env = {
        "RDMATENSOR_TRANSPORTS": "verbs",
        # The kernel says when the device's library is done with memory, which ThreadSanitizer does not see.
        "TSAN_OPTIONS": "ignore_noninstrumented_modules=1",
    }
    if os.environ.get("RDMATENSOR_TEST_SANITIZE"):
        # With a sanitizer, in an emulator, beside other tests, a peer may take its time.
        env["RDMATENSOR_DEADLINE_MS"] = "60000"
    done = lab.hosts[0].run([programs / name], env=env, timeout=SECONDS, check=False)
    if done.returncode != 0:
        kernel = lab.hosts[0].run(["dmesg"], check=False).stdout[-2000:]
        text = f"{done.stdout}\n{done.stderr}\nThe kernel said:\n{kernel}"
        pytest.fail(f"exit status {done.returncode}\n{text}")
