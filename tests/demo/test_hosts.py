# SPDX-License-Identifier: Apache-2.0
"""The demo between two hosts: tensors cross the network over tcp, none goes by rpc, and training works."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from support.network import two_hosts


def test_demo_between_two_hosts(tmp_path: Path) -> None:
    with two_hosts() as network:
        hosts = ",".join(f"{host.namespace}={host.address}" for host in network[:2])
        words = ["--hosts", hosts, "--ssh", "ip netns exec", "--protocol", "grpc+rdma"]
        words += ["--workers", "1", "--steps", "150", "--hidden", "128"]
        words += ["--json", str(tmp_path / "run.json"), "--logs", str(tmp_path)]
        line = [sys.executable, "-m", "rdmatensor.demo", *words]
        done = subprocess.run(line, capture_output=True, text=True, timeout=300, check=False)
        log = tmp_path / "grpc+rdma" / "launch.log"
        assert done.returncode == 0, done.stdout + (log.read_text() if log.exists() else "")
    record = json.loads((tmp_path / "run.json").read_text())
    (run,) = record["runs"]
    assert record["faults"] == [] and len(run["losses"]) == 155
    assert run["paths"]["tensors"]["rpc"] == 0
    # The chief and the parameter server are on one host, the worker on the other: all updates cross.
    assert run["paths"]["transports"]["tcp"] >= 2 * 155 * record["variable_bytes"]
