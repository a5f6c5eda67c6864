# SPDX-License-Identifier: Apache-2.0
"""A TensorFlow cluster of two processes: a worker, which is the client too, and a parameter server.

Each has a server of protocol grpc and one of grpc+rdma; the worker does the same on both and prints what
came out as JSON. Then its channels fall back to tcp, and return. Before that, two workers of
MultiWorkerMirroredStrategy use collectives over grpc+rdma. All processes are forked from the first after
TensorFlow was imported, and before it did anything, because importing it takes more than a minute on
emulated processors.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
import numpy as np
import tensorflow as tf

import rdmatensor.config
import rdmatensor.tensorflow
from softroce import collective_task

PROTOCOLS = ("grpc", "grpc+rdma")
# Elements: in a group, written in one piece, written in several.
SIZES = (100, 50_000, 1_000_000)
STEPS = 4
# The tasks agree on places for a graph's tensors during its first step and shortly after it.
WARM_UP, AGREE_S = 2, 2.0
FEATURES, HIDDEN = 100, 200
CHANGE_S = 240.0
COUNTERS = Path("/sys/class/infiniband/rxe0/ports/1/hw_counters")

v1 = tf.compat.v1


def start_server(protocol: str, address: str, job: str) -> Any:
    """The task of `job`; both tasks are at `address`, at ports that go by protocol and job."""
    port = 4000 + 10 * PROTOCOLS.index(protocol)
    cluster = {"worker": [f"{address}:{port}"], "ps": [f"{address}:{port + 1}"]}
    return tf.distribute.Server(
        tf.train.ClusterSpec(cluster), job_name=job, task_index=0, protocol=protocol
    )


def tensors_by_path() -> dict[str, int]:
    """That this task sent or received so far."""
    paths: Any = rdmatensor.tensorflow.stats()["paths"]
    return {path: c["sent_tensors"] + c["received_tensors"] for path, c in paths.items()}


def exchange(target: str) -> tuple[list[list[float]], dict[str, int]]:
    """A step's values: what the worker computes of variables, and what the server of the result. And
    the tensors by path, after the first steps."""
    with tf.Graph().as_default():
        with tf.device("/job:ps/task:0/cpu:0"):
            variables = [
                v1.get_variable(
                    f"v{size}",
                    initializer=tf.range(size, dtype=tf.float32) % 1000,
                    use_resource=True,
                )
                for size in SIZES
            ]
            values = [variable.read_value() for variable in variables]
        with tf.device("/job:worker/task:0/cpu:0"):
            doubled = [value * 2 for value in values]
            sums = [tf.reduce_sum(tf.cast(value, tf.float64)) for value in values]
        with tf.device("/job:ps/task:0/cpu:0"):
            updates = [
                v.assign_add(d, read_value=False) for v, d in zip(variables, doubled, strict=True)
            ]
        with v1.Session(target) as session:
            session.run(v1.global_variables_initializer())
            for _ in range(WARM_UP):
                session.run(sums)
                session.run(updates)
                time.sleep(AGREE_S)
            before = tensors_by_path()
            rows = []
            for _ in range(STEPS):
                rows.append([float(value) for value in session.run(sums)])
                session.run(updates)
            return rows, {path: count - before[path] for path, count in tensors_by_path().items()}


def train(target: str) -> list[str]:
    """Losses of gradient descent, exactly: weights on the server, arithmetic on the worker."""
    random = np.random.default_rng(3)
    x = random.normal(size=(64, FEATURES)).astype("f")
    y = np.tanh(x @ random.normal(size=(FEATURES, 10)).astype("f"))
    with tf.Graph().as_default():
        with tf.device("/job:ps/task:0/cpu:0"):
            weights = [
                v1.get_variable(
                    f"w{i}",
                    initializer=random.normal(scale=0.1, size=shape).astype("f"),
                    use_resource=True,
                )
                for i, shape in enumerate(((FEATURES, HIDDEN), (HIDDEN, 10)))
            ]
        with tf.device("/job:worker/task:0/cpu:0"):
            hidden = tf.nn.relu(tf.constant(x) @ weights[0].read_value())
            loss = tf.reduce_mean((hidden @ weights[1].read_value() - y) ** 2)
            gradients = tf.gradients(loss, weights)
        with tf.device("/job:ps/task:0/cpu:0"):
            apply = [
                w.assign_sub(0.1 * g, read_value=False)
                for w, g in zip(weights, gradients, strict=True)
            ]
        with v1.Session(target) as session:
            session.run(v1.global_variables_initializer())
            return [float(session.run([loss, *apply])[0]).hex() for _ in range(STEPS)]


def transports() -> set[str]:
    """The transports by which this task sends and receives."""
    return {peer["transport"] for peer in rdmatensor.tensorflow.stats()["peers"]}


def change(target: str) -> dict[str, Any]:
    """Verbs fail at this task, so its channels go over tcp. Then verbs work again, while steps go on."""
    with tf.Graph().as_default():
        with tf.device("/job:ps/task:0/cpu:0"):
            there = tf.random.uniform([SIZES[1]])
        with tf.device("/job:worker/task:0/cpu:0"):
            here = there * 2
        with tf.device("/job:ps/task:0/cpu:0"):
            is_right = tf.reduce_all(tf.equal(here, there + there))
        with v1.Session(target) as session:

            def until_over(transport: str) -> dict[str, int]:
                counts = {"right": 0, "wrong": 0, "lost": 0}
                end = time.monotonic() + CHANGE_S
                while transports() != {transport} or counts["right"] < STEPS:
                    if time.monotonic() > end:
                        raise TimeoutError(f"{transports()}, not {transport}, after {counts}")
                    try:
                        counts["right" if session.run(is_right) else "wrong"] += 1
                    except (tf.errors.UnavailableError, tf.errors.AbortedError):
                        counts["lost"] += 1
                return counts

            found = {"first": until_over("verbs")}
            rdmatensor.config.set("FAULTS", "transport=verbs,connect=1,break=1")
            found["worse"] = until_over("tcp")
            rdmatensor.config.set("FAULTS", os.environ["RDMATENSOR_FAULTS"])
            found["better"] = until_over("verbs")
            peers = rdmatensor.tensorflow.stats()["peers"]
            return {**found, "moves": [each["moves"] for each in peers if each["moves"]]}


def sent_packets() -> int:
    return int((COUNTERS / "sent_pkts").read_text())


def work(servers: dict[str, Any]) -> dict[str, Any]:
    results: dict[str, Any] = {}
    for protocol, server in servers.items():
        rdmatensor.tensorflow.reset_stats()
        packets = sent_packets()
        sums, settled = exchange(server.target)
        results[protocol] = {
            "sums": sums,
            "settled": settled,
            "losses": train(server.target),
            "stats": rdmatensor.tensorflow.stats(),
            "packets": sent_packets() - packets,
        }
    return results


def main() -> None:
    address = sys.argv[1]
    collectives = collective_task.run(address, 4100)
    job = "worker"
    line, end_of_worker = os.pipe()
    if os.fork() == 0:
        job = "ps"
        os.close(end_of_worker)
    servers = {protocol: start_server(protocol, address, job) for protocol in PROTOCOLS}
    if job == "ps":
        os.read(line, 1)  # until the worker has ended
    else:
        done = work(servers)
        done["change"] = change(servers["grpc+rdma"].target)
        print(json.dumps({"collectives": collectives, **done}), flush=True)
    os._exit(0)  # servers cannot be stopped


if __name__ == "__main__":
    main()
