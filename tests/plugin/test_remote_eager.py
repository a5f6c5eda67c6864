# SPDX-License-Identifier: Apache-2.0
"""tf.config.experimental_connect_to_cluster: tensors of eager operations between a client and two tasks,
in all directions."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from plugin.transports import TRANSPORT
from support import warm
from support.clusters import Cluster

CLIENT = "/job:client/replica:0/task:0"
SCENARIOS = [
    "values",
    "function",
    "source_gone",
    "variable",
    "rows",
    "again",
    "added_back",
    "after_reset",
]


def _run(cluster: Cluster, protocol: str) -> Any:
    """What the client's scenarios said, and what the tasks counted in all of them."""
    cluster.reset_stats()
    run = subprocess.run(
        [
            warm.python(),
            Path(__file__).with_name("remote_client.py"),
            json.dumps(cluster.spec),
            protocol,
        ],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert run.returncode == 0, run.stderr[-4000:]
    said = json.loads(run.stdout.splitlines()[-1])
    return said, [cluster.stats(index) for index in (0, 1)]


@pytest.fixture(scope="module")
def over_rdma(shared_cluster: Cluster) -> Any:
    return _run(shared_cluster, "grpc+rdma")


def _sent(paths: Any) -> int:
    return sum(counters["sent_tensors"] for name, counters in paths.items() if name != "rpc")


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_client_sends_and_receives_nothing_by_rpc(over_rdma: Any, scenario: str) -> None:
    said, _ = over_rdma
    paths = said[scenario]["paths"]
    assert paths["rpc"] == dict.fromkeys(paths["rpc"], 0)
    received = sum(counters["received_tensors"] for counters in paths.values())
    # At least what the scenario checked came back, and was made of something that went out.
    assert received >= said[scenario]["tensors"]
    assert _sent(paths) >= said[scenario]["tensors"]


def test_tasks_use_rpc_for_strings_only(over_rdma: Any) -> None:
    said, tasks = over_rdma
    assert said["strings"]["paths"]["rpc"]["received_tensors"] == 1
    for stats in tasks:
        assert set(stats["rpc_reasons"]) == {"string"}, stats
        assert _sent(stats["paths"]) > 2 * said["values"]["tensors"]


def test_rows_are_changed_by_the_plugins_kernels(over_rdma: Any) -> None:
    _, (first, _) = over_rdma
    assert first["rows"]["operations"] >= 2
    assert first["rows"]["rows"] >= 2 * 4


def test_peers_of_the_client(over_rdma: Any) -> None:
    said, _ = over_rdma
    peers = {(peer["direction"], peer["task"]): peer for peer in said["function"]["peers"]}
    for task in ("/job:worker/replica:0/task:0", "/job:worker/replica:0/task:1"):
        for direction in ("send", "receive"):
            peer = peers[direction, task]
            assert (peer["state"], peer["transport"]) == ("ready", TRANSPORT)
            assert peer["tensors"] > 0
            assert peer["bytes"] >= 400_000
            assert peer["rpc_bytes"] == 0


def test_client_with_stock_grpc(shared_cluster: Cluster) -> None:
    """Its own tensors go by RPC, with the right values; those between the tasks do not."""
    said, (first, second) = _run(shared_cluster, "grpc")
    assert all(_sent(said[scenario]["paths"]) == 0 for scenario in SCENARIOS)
    assert _sent(first["paths"]) >= said["values"]["tensors"]
    for direction in ("receive", "send"):
        (peer,) = [
            p for p in second["peers"] if p["task"] == CLIENT and p["direction"] == direction
        ]
        assert peer["state"] == "rpc"
        assert peer["rpc_bytes"] == peer["bytes"] > 400_000
    assert any("task:0" in p["task"] and p["state"] == "ready" for p in second["peers"])


def test_user_may_choose_to_pack_what_the_client_sends(
    shared_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TensorFlow's own switch wins."""
    monkeypatch.setenv("TF_EAGER_REMOTE_USE_SEND_TENSOR_RPC", "1")
    said, _ = _run(shared_cluster, "grpc+rdma")
    assert _sent(said["values"]["paths"]) == 0
