# SPDX-License-Identifier: Apache-2.0
"""ParameterServerStrategy with a ClusterCoordinator: sharded variables, embeddings, data sets on workers,
and the loss of a worker and of a parameter server."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from plugin.transports import TRANSPORT
from support import warm


@pytest.fixture(scope="module")
def said() -> Any:
    run = subprocess.run(
        [warm.python(), Path(__file__).with_name("parameter_server.py"), "grpc+rdma"],
        capture_output=True,
        text=True,
        timeout=115,
    )
    assert run.returncode == 0, run.stderr[-4000:]
    return json.loads(run.stdout.splitlines()[-1])


def _by_rpc(stats: Any) -> dict[str, Any]:
    """Reasons by task, but for what cannot go otherwise."""
    reasons = {
        task: set(each["rpc_reasons"]) - {"variant", "string"} for task, each in stats.items()
    }
    return {task: each for task, each in reasons.items() if each}


def test_every_update_arrives_once(said: Any) -> None:
    train = said["train"]
    assert train["steps"] == train["weights"] == 45
    assert train["seen"] == train["ids"] > 45
    assert len(set(train["shards"])) == 2, "not spread over the parameter servers"


def test_nothing_goes_by_rpc(said: Any) -> None:
    stats = said["train"]["stats"]
    assert not _by_rpc(stats)
    weights = 4 * 5000 * 4
    for task in ("ps 0", "ps 1"):
        paths = stats[task]["paths"]
        # Half of the weights is there: each step reads it and sends a gradient of its size.
        received = sum(paths[path]["received_bytes"] for path in paths if path != "rpc")
        assert received >= 45 * weights // 2, (task, paths)


def test_servers_use_the_plugins_kernels_for_rows(said: Any) -> None:
    train = said["train"]
    rows = [train["stats"][task]["rows"] for task in ("ps 0", "ps 1")]
    # Rows are read and then changed. A table's first operation is TensorFlow's.
    assert sum(each["rows"] for each in rows) > train["ids"], rows
    assert all(each["operations"] > each["left"] for each in rows), rows


def test_training_goes_on_without_a_worker_and_with_its_successor(said: Any) -> None:
    lost = said["lose_worker"]
    # A step that the worker had begun is made again: by the coordinator's promise at least once.
    assert lost["without"] >= 60
    assert sorted(lost["survivors"]) == ["ps 0", "ps 1", "worker 0"]
    assert not _by_rpc(lost["stats"])
    for task in ("chief", "ps 0", "ps 1"):
        (peer,) = [
            peer
            for peer in lost["stats"][task]["peers"]
            if peer["task"] == "/job:worker/replica:0/task:1" and peer["direction"] == "receive"
        ]
        assert (peer["state"], peer["transport"]) == ("ready", TRANSPORT), (task, peer)
        assert peer["tensors"] > 0, (task, peer)
        assert peer["rpc_bytes"] == 0, (task, peer)


def test_loss_of_a_parameter_server_ends_training(said: Any) -> None:
    assert said["lose_server"]["error"] == "UnavailableError"
