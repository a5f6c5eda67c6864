# SPDX-License-Identifier: Apache-2.0
"""The demo trains here and between two hosts, and names what is wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.network import two_hosts

# Trains several times: 40 s on a busy machine with two processors.
pytestmark = pytest.mark.timeout(400)
COMPARE = Path(__file__).parents[2] / "examples" / "demo" / "compare.py"


def compare(folder: Path, *words: str) -> tuple[int, str, dict[str, Any]]:
    """Run the demo with one worker: its exit status, output and record."""
    options = ["--workers", "1", "--json", str(folder / "run.json"), *words]
    line = [sys.executable, str(COMPARE), *options]
    done = subprocess.run(line, capture_output=True, text=True, timeout=300, check=False)
    return done.returncode, done.stdout, json.loads((folder / "run.json").read_text())


def test_both_protocols_compute_the_same(tmp_path: Path) -> None:
    status, said, record = compare(tmp_path, "--steps", "150", "--hidden", "128")
    assert status == 0 and record["faults"] == [], said
    stock, ours = record["runs"]
    assert len(stock["losses"]) == 155 and stock["losses"] == ours["losses"]
    assert "the same bits" in said
    assert ours["tensors"]["rpc"] == 0 and ours["tensors"]["static"] > 155


def test_a_failing_task_is_named(tmp_path: Path) -> None:
    status, said, record = compare(tmp_path, "--hidden", "-1")
    assert status == 1 and record["runs"] == []
    assert "chief 0 exited with status 1" in said and "grpc: the tasks failed" in said


@pytest.mark.long
def test_a_poor_classifier_is_named(tmp_path: Path) -> None:
    status, said, record = compare(
        tmp_path, "--hidden", "16", "--steps", "1", "--protocol", "grpc+rdma"
    )
    assert status == 1 and len(record["runs"]) == 1
    assert "grpc+rdma: test accuracy 0." in said


def test_between_two_hosts(tmp_path: Path) -> None:
    with two_hosts() as network:
        hosts = ",".join(f"{host.namespace}={host.address}" for host in network[:2])
        words = ["--hosts", hosts, "--tasks-per-host", "2", "--ssh", "ip netns exec"]
        words += ["--steps", "150", "--hidden", "128", "--protocol", "grpc+rdma"]
        status, said, record = compare(tmp_path, *words)
    assert status == 0 and record["faults"] == [], said
    (run,) = record["runs"]
    assert len(run["losses"]) == 155 and run["tensors"]["rpc"] == 0
    # The chief and the parameter server are on one host, the worker on the other: all updates cross.
    assert run["transports"]["tcp"] >= 2 * 155 * run["variable_bytes"]
