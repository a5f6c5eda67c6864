# SPDX-License-Identifier: Apache-2.0
"""A test file that says nothing of a protocol runs over grpc+rdma, and its tensors do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tensorflow", exc_type=ImportError)

TESTS = Path(__file__).resolve().parents[1]
SERVERS = """
import sys
import unittest

import tensorflow as tf

sys.path.insert(0, TESTS)
from support.ports import free_ports

class Servers(unittest.TestCase):
    def test_session(self):
        cluster = {"worker": free_addresses(2)}
        servers = [tf.distribute.Server(cluster, "worker", task) for task in range(2)]
        with tf.Graph().as_default(), tf.device("/job:worker/task:1"):
            number = tf.random.uniform([256])
        with number.graph.as_default(), tf.device("/job:worker/task:0"):
            half = number / 2
        with tf.compat.v1.Session(servers[0].target, graph=half.graph) as session:
            whole, halved = session.run([number, half])
        self.assertEqual(list(whole / 2), list(halved))
        self.assertEqual(servers[0].server_def.protocol, "grpc")

    def test_remote_device(self):
        cluster = {"worker": free_addresses(1), "client": free_addresses(1)}
        server = tf.distribute.Server(cluster, "worker", 0)
        tf.config.experimental_connect_to_cluster(tf.train.ClusterSpec(cluster), job_name="client")
        with tf.device("/job:worker/task:0"):
            number = tf.range(256.0)
        self.assertEqual(number.numpy()[255], 255)

def free_addresses(count):
    return [f"localhost:{port}" for port in free_ports(count)]

if __name__ == "__main__":
    unittest.main()
"""


@pytest.mark.long
def test_servers_get_the_protocol(
    sources: Callable[..., str], conformance: Callable[..., Any]
) -> None:
    path = sources("servers_test", SERVERS.replace("TESTS", repr(str(TESTS))))
    done = conformance(f"{path} tensors", "--variants", "bounce", "tcp")
    assert done.status == 0, done.said
    sides = done.results["made_up.servers_test"]["sides"]
    for side in sides.values():
        assert {test["status"] for test in side["tests"].values()} == {"pass"}
    assert sides["grpc"]["plugin"] == {}
    counted = sides["grpc+rdma/bounce"]["plugin"]
    assert counted["servers"] == 4  # two for the session, two for the remote device
    assert counted["bounce tensors"] >= 1 and "inline tensors" not in counted
    counted = sides["grpc+rdma/tcp"]["plugin"]
    assert counted["servers"] == 4 and counted["received over tcp"] >= 1, counted
