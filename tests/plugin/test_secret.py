# SPDX-License-Identifier: Apache-2.0
"""Servers with a secret: those with the same one exchange tensors, others go by gRPC, or not at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from plugin.transports import TRANSPORT
from support.clusters import Cluster
from support.graphs import TASK0, TASK1, cross, session, v1

errors = tf.errors
TASK2, TASK3 = "/job:worker/task:2", "/job:worker/task:3"


def environment(folder: Path, secret: str, **settings: str) -> dict[str, str]:
    path = folder / secret
    path.touch(0o600)
    path.write_text(f"the secret that begins with {secret}")
    settings["SECRET_FILE"] = str(path)
    return {f"RDMATENSOR_{name}": value for name, value in settings.items()}


def test_tensors_and_secrets(tmp_path: Path) -> None:
    one, other = environment(tmp_path, "a"), environment(tmp_path, "b")
    strict = environment(tmp_path, "b", POLICY="rdma")
    cluster = Cluster(["grpc+rdma"] * 4, tmp_path, {0: one, 1: one, 2: other, 3: strict})

    def build() -> Any:
        value = v1.placeholder(tf.float32, [])
        sources = []
        for task in (TASK1, TASK2):
            with tf.device(task):
                sources.append(tf.fill([100_000], value))
        with tf.device(TASK0):
            large = tf.fill([100_000], value)
        with tf.device(TASK3):
            refused = tf.reduce_sum(large)
        return value, [tf.reduce_sum(cross(each)) for each in sources], refused

    try:
        with session(cluster, build) as opened:
            value, sums, refused = opened.built
            for number in range(3):
                assert opened.run(sums, {value: number}) == [100_000 * number] * 2
            peers = {
                peer["task"][-1]: (peer["transport"], peer["why"])
                for peer in cluster.stats(0)["peers"]
                if peer["direction"] == "receive"
            }
            assert peers["1"][0] == TRANSPORT
            assert peers["2"][0] == "grpc"
            assert "does not have the secret" in peers["2"][1]
            (warning,) = [each for each in cluster.warnings(0) if "go by grpc" in each]
            assert "/task:2" in warning and "RDMATENSOR_SECRET_FILE" in warning
            with pytest.raises(errors.UnavailableError, match="does not have the secret"):
                opened.run(refused, {value: 1})
            assert opened.run(sums[0], {value: 4}) == 400_000
    finally:
        cluster.close()
