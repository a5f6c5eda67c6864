# SPDX-License-Identifier: Apache-2.0
"""Servers that encrypt exchange tensors with each other; with others they use gRPC, or nothing at all."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from support.clusters import Cluster
from support.graphs import TASK0, TASK1, cross, session, v1
from support.ports import free_ports

TASK2, TASK3, TASK4 = (f"/job:worker/task:{index}" for index in (2, 3, 4))
FLOATS = 1_000_000


def test_tensors(tmp_path: Path, faults_library: Path) -> None:
    secret = tmp_path / "secret"
    secret.touch(0o600)
    secret.write_text("the secret of all of them")

    def environment(**settings: str) -> dict[str, str]:
        settings.update(SECRET_FILE=str(secret), TRANSPORTS="tcp")
        return {f"RDMATENSOR_{name}": value for name, value in settings.items()}

    on, off = environment(ENCRYPT="on"), environment(ENCRYPT="off")
    port = free_ports(1)[0]
    strict = environment(ENCRYPT="on", POLICY="rdma", BIND_PORT=str(port))
    # Somebody on the way leads its connections to another task.
    diverted = {**on, "LD_PRELOAD": str(faults_library), "FAULTS_DIVERT": f"127.0.0.1:{port}"}
    cluster = Cluster(["grpc+rdma"] * 5, tmp_path, {0: on, 1: on, 2: off, 3: strict, 4: diverted})

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
        with tf.device(TASK4):
            led_elsewhere = tf.reduce_sum(sources[0])
        with tf.device(TASK0):
            sums = [tf.reduce_sum(cross(each)) for each in sources]
        return value, [*sums, led_elsewhere], refused

    try:
        with session(cluster, build) as opened:
            value, sums, refused = opened.built
            for number in range(3):
                assert opened.run(sums, {value: number}) == [FLOATS * number] * 3
            peers, diverted_peers = (
                {
                    peer["task"][-1]: peer
                    for peer in cluster.stats(index)["peers"]
                    if peer["direction"] == "receive"
                }
                for index in (0, 4)
            )
            assert (peers["1"]["transport"], peers["1"]["encrypted"]) == ("tcp", True)
            assert (peers["2"]["transport"], peers["2"]["encrypted"]) == ("grpc", False)
            assert "RDMATENSOR_ENCRYPT=on" in peers["2"]["why"]
            assert diverted_peers["1"]["transport"] == "grpc"
            why = r"the device at .*:3#\w+ as seen from here, not .*:1#\w+: .* diverts connections"
            assert re.search(why, diverted_peers["1"]["why"])
            with pytest.raises(tf.errors.UnavailableError, match="RDMATENSOR_ENCRYPT=on"):
                opened.run(refused, {value: 1})
    finally:
        cluster.close()
