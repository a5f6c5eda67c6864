# SPDX-License-Identifier: Apache-2.0
"""TensorFlow over verbs: over grpc+rdma the tensors go by the device, and the results are the same."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rdmatensor.softroce import Lab
from softroce.imports import pack
from support import TESTS, WHOLE

TASK = Path(__file__).parent / "tensorflow_task.py"
PATIENCE = 900.0  # TensorFlow takes most of a minute to be imported on emulated processors
FLOAT = 4
LARGEST = 1_000_000  # elements of the largest tensor
WARM_UP = 2  # steps before those whose values are told
# Bytes that a process sends in a step, at least, by the way: half of them of what two processes exchange.
LEAST = {"all_reduce": 80_000, "sharded": 80_000, "owners": 1000}
MTU = 4096


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
        "RDMATENSOR_TEST_FAILBACK_MS": "200",
        "RDMATENSOR_POLICY": "rdma",
        "RDMATENSOR_DEADLINE_MS": "30000",
        "RDMATENSOR_CHECKSUM": "crc32c",
    }
    done = host.run(
        [sys.executable, TASK, host.address, *["whole"] * WHOLE],
        env=environment,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-6000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_values_and_losses_are_those_of_grpc(results: Any) -> None:
    stock, rdma = results["grpc"], results["grpc+rdma"]
    assert rdma["losses"] == stock["losses"], "not the same bits"
    # A step adds twice what there is.
    first = [float((np.arange(size) % 1000).sum()) for size in (100, 50_000, LARGEST)]
    steps = range(WARM_UP, WARM_UP + len(rdma["sums"]))
    assert rdma["sums"] == [[3.0**step * each for each in first] for step in steps]
    assert len(steps) > 1


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


@pytest.mark.long
def test_collectives_go_by_verbs(results: Any) -> None:
    first, second = workers = results["collectives"]
    assert first["trained"] == second["trained"], "not the same bits"
    for worker in workers:
        assert all(each["got"] == each["right"] for each in worker["reduced"].values()), worker
        collectives = worker["stats"]["collectives"]
        assert collectives["by_tensorflow"] == {} and collectives["failed"] == 0, collectives
        assert {group["transport"] for group in collectives["groups"]} == {"rdmatensor"}
        assert collectives["operations"]["all_reduce"]["bytes"] > LARGEST * FLOAT, collectives


@pytest.mark.long
def test_training_goes_by_verbs(results: Any) -> None:
    """A step with all-reduced gradients, one with a sharded optimizer, one with a table that has owners."""
    ranks = results["training"]["ranks"]
    assert len(ranks) == 2
    for each in ranks:
        assert set(each["steps"]) == {"all_reduce", "sharded", "owners"}
        for name, step in each["steps"].items():
            for got, right in zip(step["got"], step["right"], strict=True):
                np.testing.assert_allclose(got, right, atol=1e-6, err_msg=name)
            assert step["carried"] > LEAST[name], name
        closed = "not in RDMATENSOR_TRANSPORTS"
        assert [name for name, text in each["transports"].items() if text != closed] == ["verbs"]
    # The device's own counter, for the same bytes; acknowledgements come on top.
    carried = sum(step["carried"] for each in ranks for step in each["steps"].values())
    assert results["training"]["packets"] > carried / MTU


def test_calls_go_by_verbs(results: Any) -> None:
    called = results["grpc+rdma"]["stats"]["control"]["/job:ps/replica:0/task:0"]
    assert called["way"] == "channel" and "verbs" in called["why"], called
    # In each step the worker has the server read variables, or update them.
    assert called["channel_calls"] > 2 * len(results["grpc+rdma"]["sums"]), called
    assert "/job:ps/replica:0/task:0" not in results["grpc"]["stats"]["control"]


@pytest.mark.long
def test_calls_find_a_new_channel(results: Any) -> None:
    found = results["broken call"]
    assert found["control"]["way"] == "channel" and "verbs" in found["control"]["why"], found
    # The call that ended its channel failed, or was made over gRPC.
    assert found["lost"] + found["by grpc"] > 0, found
    assert found["done"] <= found["total"] <= found["done"] + found["lost"], found


@pytest.mark.long
def test_channels_return_to_verbs_while_steps_go_on(results: Any) -> None:
    change = results["change"]
    assert all(
        change[each]["wrong"] == 0 < change[each]["right"] for each in ("first", "worse", "better")
    )
    assert change["first"]["lost"] == 0 < change["worse"]["lost"], change
    assert change["better"]["lost"] == 0, "a step was lost on the way back"
    assert change["moves"], change
