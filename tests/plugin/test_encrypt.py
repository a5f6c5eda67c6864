# SPDX-License-Identifier: Apache-2.0
"""Servers that encrypt exchange tensors with each other; with others they use gRPC, or nothing at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from support.clusters import Cluster
from support.graphs import TASK0, TASK1, cross, session, v1

TASK2, TASK3 = "/job:worker/task:2", "/job:worker/task:3"
FLOATS = 1_000_000


def test_tensors(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.touch(0o600)
    secret.write_text("the secret of all of them")

    def environment(**settings: str) -> dict[str, str]:
        settings.update(SECRET_FILE=str(secret), TRANSPORTS="tcp")
        return {f"RDMATENSOR_{name}": value for name, value in settings.items()}

    on, off = environment(ENCRYPT="on"), environment(ENCRYPT="off")
    strict = environment(ENCRYPT="on", POLICY="rdma")
    cluster = Cluster(["grpc+rdma"] * 4, tmp_path, {0: on, 1: on, 2: off, 3: strict})

    def build() -> Any:
        value = v1.placeholder(tf.float32, [])
        sources = []
        for task in (TASK1, TASK2):
            with tf.device(task):
                sources.append(tf.fill([FLOATS], value))
        with tf.device(TASK2):
            large = tf.fill([FLOATS], value)
        with tf.device(TASK3):
            refused = tf.reduce_sum(large)
        with tf.device(TASK0):
            return value, [tf.reduce_sum(cross(each)) for each in sources], refused

    try:
        with session(cluster, build) as opened:
            value, sums, refused = opened.built
            for number in range(3):
                assert opened.run(sums, {value: number}) == [FLOATS * number] * 2
            peers = {
                peer["task"][-1]: peer
                for peer in cluster.stats(0)["peers"]
                if peer["direction"] == "receive"
            }
            assert (peers["1"]["transport"], peers["1"]["encrypted"]) == ("tcp", True)
            assert (peers["2"]["transport"], peers["2"]["encrypted"]) == ("grpc", False)
            assert "RDMATENSOR_ENCRYPT=on" in peers["2"]["why"]
            with pytest.raises(tf.errors.UnavailableError, match="RDMATENSOR_ENCRYPT=on"):
                opened.run(refused, {value: 1})
    finally:
        cluster.close()
