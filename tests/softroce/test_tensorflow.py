# SPDX-License-Identifier: Apache-2.0
"""TensorFlow over verbs: over grpc+rdma the tensors go by the device, and the results are the same."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rdmatensor.softroce import Lab
from softroce.imports import pack
from support import TESTS

TASK = Path(__file__).parent / "tensorflow_task.py"
PATIENCE = 900.0  # TensorFlow takes most of a minute to be imported on emulated processors
FLOAT = 4
LARGEST = 1_000_000  # elements of the largest tensor


@pytest.fixture(scope="module")
def packages(lab: Lab) -> Iterator[str]:
    """A folder in the guest's memory from which TensorFlow can be imported."""
    host, folder, archive = lab.hosts[0], "/dev/shm/site-packages", lab.shared / "packages.tar"
    pack(archive)
    host.run(["mkdir", folder])
    host.run(["tar", "-xf", archive, "-C", folder])
    archive.unlink()
    yield folder
    host.run(["rm", "-r", folder])


@pytest.fixture(scope="module")
def results(lab: Lab, request: pytest.FixtureRequest) -> Any:
    """What the workers found, by protocol."""
    pytest.importorskip("tensorflow", exc_type=ImportError)
    host = lab.hosts[0]
    environment = {
        "PYTHONPATH": f"{request.getfixturevalue('packages')}:{TESTS}",
        "RDMATENSOR_TRANSPORTS": "verbs,tcp",
        # Nothing fails until the task says so, but verbs are wrapped from the start.
        "RDMATENSOR_FAULTS": "transport=verbs,connect=#1000000",
        "RDMATENSOR_FAILBACK_MS": "200",
        "RDMATENSOR_POLICY": "rdma",
        "RDMATENSOR_DEADLINE_MS": "30000",
        "RDMATENSOR_CHECKSUM": "crc32c",
    }
    done = host.run(
        [sys.executable, TASK, host.address], env=environment, timeout=PATIENCE, check=False
    )
    assert done.returncode == 0, done.stderr[-6000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_values_and_losses_are_those_of_grpc(results: Any) -> None:
    stock, rdma = results["grpc"], results["grpc+rdma"]
    assert rdma["sums"] == stock["sums"]
    assert rdma["losses"] == stock["losses"], "not the same bits"
    first, *later = (row[-1] for row in rdma["sums"])
    assert later == [first * 3**step for step in range(1, len(later) + 1)]


def test_payload_goes_by_verbs(results: Any) -> None:
    stats = results["grpc+rdma"]["stats"]
    steps = len(results["grpc+rdma"]["sums"])
    # In each step the worker is sent the largest variable twice: to sum it up, and to double it.
    least = steps * 2 * LARGEST * FLOAT
    assert stats["transports"]["verbs"]["received_bytes"] > least
    assert stats["paths"]["static"]["received_bytes"] > least
    assert stats["paths"]["rpc"]["sent_tensors"] == 0 == stats["paths"]["rpc"]["received_tensors"]
    # Three variables are read twice in each step and updated once.
    settled = dict.fromkeys(stats["paths"], 0) | {"static": steps * 9}
    assert results["grpc+rdma"]["settled"] == settled
    assert {peer["transport"] for peer in stats["peers"]} == {"verbs"}
    # The device's own counter, which the plugin cannot make up: requests and acknowledgements.
    assert results["grpc+rdma"]["packets"] > 100 * max(1, results["grpc"]["packets"])


def test_what_verbs_moved_has_its_checksum(results: Any) -> None:
    found = results["grpc+rdma"]["stats"]["checksums"]
    assert found["verified"] > 3 * len(results["grpc+rdma"]["sums"])
    assert found["sent"] > 0 and found["corrupted"] == 0 == found["unchecked"]


def test_collectives_go_by_verbs(results: Any) -> None:
    first, second = workers = results["collectives"]
    assert first["trained"] == second["trained"], "not the same bits"
    for worker in workers:
        assert all(each["got"] == each["right"] for each in worker["reduced"].values()), worker
        collectives = worker["stats"]["collectives"]
        assert collectives["by_tensorflow"] == {} and collectives["failed"] == 0, collectives
        assert {group["transport"] for group in collectives["groups"]} == {"rdmatensor"}
        assert collectives["operations"]["all_reduce"]["bytes"] > LARGEST * FLOAT, collectives


def test_channels_return_to_verbs_while_steps_go_on(results: Any) -> None:
    change = results["change"]
    assert all(
        change[each]["wrong"] == 0 < change[each]["right"] for each in ("first", "worse", "better")
    )
    assert change["first"]["lost"] == 0 < change["worse"]["lost"], change
    assert change["better"]["lost"] == 0, "a step was lost on the way back"
    assert change["moves"], change
