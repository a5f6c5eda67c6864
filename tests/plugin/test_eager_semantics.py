# SPDX-License-Identifier: Apache-2.0
"""Eager operations, functions and ClusterCoordinator behave over grpc+rdma as over stock gRPC, also when they
fail, are cancelled, or lose a task."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from support import warm


def _run(protocol: str) -> Any:
    run = subprocess.run(
        [warm.python(), Path(__file__).with_name("eager_semantics.py"), protocol],
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert run.returncode == 0, run.stderr[-4000:]
    return json.loads(run.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def over_grpc() -> Any:
    return _run("grpc")


@pytest.fixture(scope="module")
def over_rdma() -> Any:
    return _run("grpc+rdma")


def test_every_case_ends_as_over_grpc(over_grpc: Any, over_rdma: Any) -> None:
    for case, said in over_grpc["said"].items():
        assert over_rdma["said"][case] == said, case


def test_cases_are_what_they_should_be(over_rdma: Any) -> None:
    said = over_rdma["said"]
    assert said["scheduled"][0] == 20
    assert said["in_flight"] == 1000
    assert said["function_raises"][0]["error"] == "InvalidArgumentError"
    assert said["cancelled"][:2] == [True, "CancelledError"]
    assert said["worker_is_lost"] == ["UnavailableError", True, False]
    assert said["server_is_lost"] == ["UnavailableError", True, False]


def test_messages_went_over_channels(over_rdma: Any) -> None:
    for task in (
        "/job:worker/replica:0/task:0",
        "/job:worker/replica:0/task:1",
        "/job:ps/replica:0/task:0",
    ):
        calls = over_rdma["control"][task]
        assert calls["channel_calls"] > 20, calls
        assert calls["channel_calls"] > 10 * calls["grpc_calls"], calls
