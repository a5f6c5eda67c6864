# SPDX-License-Identifier: Apache-2.0
"""Runs one scenario in which a session names tasks otherwise than their servers do; see test_names.py.

Prints what the plugin counted, as JSON."""

from __future__ import annotations

import json
import sys
import time
from contextlib import suppress
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import cluster_pb2, config_pb2, tensorflow_server_pb2
from tensorflow.python.eager import context

import rdmatensor.config
import rdmatensor.tensorflow

v1 = tf.compat.v1
SIZE = 100_000
STEPS = 5


def local_server() -> Any:
    """A server that calls itself /job:localhost/replica:0/task:0, as create_local_server makes it."""
    return tf.distribute.Server({"localhost": ["localhost:0"]}, protocol="grpc+rdma")


def address(server: Any) -> str:
    return str(server.target).removeprefix("grpc://")


def run_steps(target: str, addresses: list[str]) -> None:
    """Steps of a session that names the tasks /job:worker/task:0, 1, ... in the order of `addresses`."""
    cluster = cluster_pb2.ClusterDef()
    for index, each in enumerate(addresses):
        if not cluster.job:
            cluster.job.add().name = "worker"
        cluster.job[0].tasks[index] = each
    with tf.Graph().as_default():
        value = v1.placeholder(tf.float32, [])
        parts = []
        for index in range(len(addresses)):
            with tf.device(f"/job:worker/task:{index}"):
                parts.append(tf.fill([SIZE], value) + float(index))
        results = []
        for index in range(len(addresses)):
            with tf.device(f"/job:worker/task:{index}"):
                results.append(tf.add_n(parts) * float(index + 1))
        with v1.Session(target, config=config_pb2.ConfigProto(cluster_def=cluster)) as session:
            for step in range(STEPS):
                got = session.run(results, {value: float(step)})
                total = sum(step + index for index in range(len(addresses)))
                for index, each in enumerate(got):
                    np.testing.assert_array_equal(each, np.full(SIZE, total * (index + 1), "f"))


def propagated() -> None:
    servers = [local_server() for _ in range(3)]
    run_steps(servers[0].target, [address(each) for each in servers])


def two_sessions() -> None:
    """The same processes under other names in each of two sessions at once."""
    servers = [local_server() for _ in range(2)]
    addresses = [address(each) for each in servers]
    for _ in range(3):
        run_steps(servers[0].target, addresses)
        run_steps(servers[1].target, addresses[::-1])


def server_def(tasks: list[str]) -> Any:
    """A client, /job:worker/task:0, that registers as a place where nobody can reach it."""
    made = tensorflow_server_pb2.ServerDef(job_name="worker", task_index=0, protocol="grpc+rdma")
    job = made.cluster.job.add(name="worker")
    for index, each in enumerate(["localhost:0", *tasks]):
        job.tasks[index] = each
    return made


def eager_steps(tasks: int) -> None:
    mine = tf.range(SIZE, dtype=tf.float32)
    for index in range(1, tasks + 1):
        with tf.device(f"/job:worker/replica:0/task:{index}/device:CPU:0"):
            there = mine * float(index)
        with tf.device(f"/job:worker/replica:0/task:{1 + index % tasks}/device:CPU:0"):
            elsewhere = there + mine
        np.testing.assert_array_equal(elsewhere.numpy(), np.arange(SIZE, dtype="f") * (index + 1))


def unreachable_client() -> None:
    servers = [local_server() for _ in range(2)]
    context.set_server_def(server_def([address(each) for each in servers]))
    eager_steps(2)


def lost_channel(faults: str = "break=1") -> None:
    """The channels that such a client opened break, and it opens others."""
    rdmatensor.config.set("FAULTS", "delay=#1000000:1ms")
    servers = [local_server() for _ in range(2)]
    context.set_server_def(server_def([address(each) for each in servers]))
    eager_steps(2)
    rdmatensor.config.set("FAULTS", faults)
    with suppress(tf.errors.OpError):
        eager_steps(2)
    rdmatensor.config.set("FAULTS", "")
    end = time.monotonic() + 60
    while True:
        try:
            eager_steps(2)
            return
        except tf.errors.OpError:
            assert time.monotonic() < end, "no channel comes back"
            context.context().clear_executor_errors()
            time.sleep(0.05)


def lost_for_a_while() -> None:
    """The first attempts to open others fail."""
    lost_channel("break=1,connect=1")


def replaced() -> None:
    """A task of the client's cluster becomes another process, and the former one again."""
    servers = [local_server() for _ in range(3)]
    first, second, third = [address(each) for each in servers]
    context.set_server_def(server_def([first, second]))
    eager_steps(2)
    for _ in range(3):
        context.update_server_def(server_def([first, third]))
        eager_steps(2)
        context.update_server_def(server_def([first, second]))
        eager_steps(2)


def both_replaced() -> None:
    """All tasks of the client's cluster become other processes, which receive under the same names."""
    rdmatensor.config.set("POLICY", "rdma")
    addresses = [address(local_server()) for _ in range(4)]
    context.set_server_def(server_def(addresses[:2]))
    eager_steps(2)
    for _ in range(3):
        for pair in (addresses[2:], addresses[:2]):
            context.update_server_def(server_def(pair))
            eager_steps(2)


def stock_task() -> None:
    """One task has no plugin: its server answers nothing of ours."""
    servers = [local_server(), tf.distribute.Server({"localhost": ["localhost:0"]})]
    context.set_server_def(server_def([address(each) for each in servers]))
    eager_steps(2)


def main() -> None:
    globals()[sys.argv[1]]()
    print(json.dumps(rdmatensor.tensorflow.stats()), flush=True)


main()
