# SPDX-License-Identifier: Apache-2.0
"""Training over grpc+rdma computes exactly what it computes over grpc."""

from __future__ import annotations

import json
import struct
import subprocess
from pathlib import Path
from typing import Any

import pytest

from support import warm


def _train(protocol: str, how: str) -> Any:
    run = subprocess.run(
        [warm.python(), Path(__file__).with_name("train.py"), protocol, how],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert run.returncode == 0, run.stderr[-4000:]
    return json.loads(run.stdout.splitlines()[-1])


def _numbers(losses: list[str]) -> list[float]:
    return [struct.unpack("f", bytes.fromhex(loss))[0] for loss in losses]


@pytest.mark.parametrize("how", ["graph", "strategy"])
def test_losses_are_bit_identical_to_grpc(how: str) -> None:
    stock = _train("grpc", how)
    pushed = _train("grpc+rdma", how)
    losses = _numbers(stock["losses"])
    assert losses[-1] < 0.9 * losses[0], "it does not learn"
    assert pushed["losses"] == stock["losses"], (losses, _numbers(pushed["losses"]))

    for task, stats in pushed["stats"].items():
        assert set(stats["rpc_reasons"]) <= {"string", "variant", "resource"}, (task, stats)
    weights = 4 * (100 * 200 + 200 * 200 + 200 * 10)
    for task in ("worker", "ps"):
        sent = {p: c["sent_bytes"] for p, c in pushed["stats"][task]["paths"].items()}
        total = sum(sent.values()) - sent["rpc"]
        assert total >= 11 * weights, (task, sent)
        assert sent["static"] >= 0.95 * total, (task, sent)
