# SPDX-License-Identifier: Apache-2.0
"""TensorFlow between two hosts: over grpc+rdma the tensors go by verbs, and the results are the same."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from rdmatensor.softroce import Lab

TASK = Path(__file__).parent / "tensorflow_task.py"
PATIENCE = 400.0  # TensorFlow takes most of a minute to be imported on emulated processors
FLOAT = 4


@pytest.fixture(scope="module")
def results(two_hosts: Lab, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What the worker found, by protocol."""
    pytest.importorskip("tensorflow", exc_type=ImportError)
    done = Path(two_hosts.shared) / "tensorflow-done"
    command = [sys.executable, str(TASK), str(done)]
    environment = {"RDMATENSOR_POLICY": "rdma", "RDMATENSOR_DEADLINE_MS": "30000"}
    server, worker = (two_hosts.hosts[rank].start(command, env=environment) for rank in (1, 0))
    try:
        status = worker.wait(PATIENCE)
        assert status == 0, (worker.stderr + server.stderr).decode()[-6000:]
    finally:
        done.touch()
        server.wait(60)
        done.unlink()
    return json.loads(worker.stdout.splitlines()[-1])


@pytest.mark.timeout(PATIENCE + 120)
def test_values_and_losses_are_those_of_grpc(results: Any) -> None:
    stock, rdma = results["grpc"], results["grpc+rdma"]
    assert rdma["sums"] == stock["sums"]
    assert rdma["losses"] == stock["losses"], "not the same bits"
    first, *later = (row[-1] for row in rdma["sums"])
    assert later == [first * 3**step for step in range(1, len(later) + 1)]


@pytest.mark.timeout(PATIENCE + 120)
def test_payload_goes_by_verbs(results: Any) -> None:
    stats = results["grpc+rdma"]["stats"]
    steps = len(results["grpc+rdma"]["sums"])
    # In each step the worker is sent the largest variable twice: to sum it up, and to double it.
    least = steps * 2 * 1_000_000 * FLOAT
    assert stats["transports"]["verbs"]["received_bytes"] > least
    assert stats["fetched"]["read"]["bytes"] > least
    assert stats["paths"]["inline"]["received_tensors"] > 0
    assert stats["paths"]["rpc"]["sent_tensors"] == 0 == stats["paths"]["rpc"]["received_tensors"]
    assert {peer["transport"] for peer in stats["peers"]} == {"verbs"}
    # The device's own counter, which the plugin cannot make up: requests and acknowledgements.
    assert results["grpc+rdma"]["packets"] > 100 * max(1, results["grpc"]["packets"])
