# SPDX-License-Identifier: Apache-2.0
"""Two workers of MultiWorkerMirroredStrategy, which use collectives over grpc+rdma. See forks.py."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

import rdmatensor.tensorflow
from softroce.forks import in_forks
from support.collective_values import value
from support.collective_worker import Worker

MEMBERS = 2
# Elements: within a message, written in one piece, written in several.
SIZES = (100, 50_000, 1_000_000)


def _digest(data: str) -> str:
    return hashlib.sha256(data.encode()).hexdigest()


def _right(size: int) -> list[str]:
    """The sum of all members' values, and all of them. a + b is b + a: every order gives the same bits."""
    inputs = [value(member, "float32", [size], 0) for member in range(MEMBERS)]
    results = (sum(inputs[1:], inputs[0]), np.concatenate(inputs))
    return [_digest(result.tobytes().hex()) for result in results]


def _work(addresses: list[str], index: int) -> dict[str, Any]:
    worker = Worker(addresses, index, "grpc+rdma")
    reduced = {}
    for size in SIZES:
        outcome = worker.strategy_reduce("float32", [size])
        reduced[size] = {"got": list(map(_digest, outcome["results"])), "right": _right(size)}
    stats = rdmatensor.tensorflow.stats()
    return {"reduced": reduced, "trained": worker.train(), "stats": stats}


def run(address: str, port: int) -> list[dict[str, Any]]:
    """What came out at each worker. They are at `address`, at `port` and those after it."""
    addresses = [f"{address}:{port + index}" for index in range(MEMBERS)]
    return in_forks(lambda index: _work(addresses, index), MEMBERS)
