# SPDX-License-Identifier: Apache-2.0
"""A TensorFlow cluster of two processes: a worker, which is the client too, and a parameter server.

Each has a server of protocol grpc and one of grpc+rdma; the worker trains on both, exchanges tensors of known
values over the second, and prints what came out as JSON. All processes are forked from the first: see
forks.py.

With the word "whole", a call then breaks its channel, and its channels fall back to tcp, and return. Before
that, two workers of MultiWorkerMirroredStrategy use collectives over grpc+rdma, and two processes train with
rdmatensor.train.
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
import rdmatensor.faults
import rdmatensor.tensorflow
from support.waits import until

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


def control() -> Any:
    """How this task calls the server."""
    return rdmatensor.tensorflow.stats()["control"]["/job:ps/replica:0/task:0"]


def break_a_call(target: str) -> dict[str, Any]:
    """A call ends its channel. Steps go on until calls go over a new channel; none is done twice."""
    with tf.Graph().as_default():
        with tf.device("/job:ps/task:0/cpu:0"):
            count = v1.get_variable("count", initializer=0, use_resource=True)
            more, total = count.assign_add(1), count.read_value()
        with v1.Session(target) as session:
            session.run(v1.global_variables_initializer())
            found: dict[str, Any] = {"done": 0, "lost": 0}
            end = time.monotonic() + CHANGE_S

            def steps_until(happened: Any) -> None:
                while not happened():
                    if time.monotonic() > end:
                        raise TimeoutError(f"{control()} after {found}")
                    try:
                        session.run(more)
                        found["done"] += 1
                    except (tf.errors.UnavailableError, tf.errors.AbortedError):
                        found["lost"] += 1

            def by_channel_since(calls: int) -> bool:
                now = control()
                return bool(now["way"] == "channel" and now["channel_calls"] >= calls + STEPS)

            steps_until(lambda: by_channel_since(0))
            before, breaks = control(), rdmatensor.faults.counts()["call_break"]
            rdmatensor.config.set("FAULTS", os.environ["RDMATENSOR_FAULTS"] + ",call_break=#1")
            steps_until(lambda: rdmatensor.faults.counts()["call_break"] > breaks)
            rdmatensor.config.set("FAULTS", os.environ["RDMATENSOR_FAULTS"])
            calls = control()["channel_calls"]
            steps_until(lambda: by_channel_since(calls))
            found["by grpc"] = control()["grpc_calls"] - before["grpc_calls"]
            return {**found, "total": int(session.run(total)), "control": control()}


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
            until("no channel has moved", moves, CHANGE_S)  # which is counted after it
            return {**found, "moves": moves()}


def moves() -> list[int]:
    """Return how often each channel by which this task receives has moved, without those that never did."""
    peers = rdmatensor.tensorflow.stats()["peers"]
    return [each["moves"] for each in peers if each["moves"]]


def sent_packets() -> int:
    return int((COUNTERS / "sent_pkts").read_text())


def work(servers: dict[str, Any]) -> dict[str, Any]:
    results: dict[str, Any] = {}
    for protocol, server in servers.items():
        rdmatensor.tensorflow.reset_stats()
        packets = sent_packets()
        found = results[protocol] = {}
        if protocol == "grpc+rdma":
            found["sums"], found["settled"] = exchange(server.target)
        found["losses"] = train(server.target)
        found["stats"] = rdmatensor.tensorflow.stats()
        found["packets"] = sent_packets() - packets
    return results


def train_in_other_ways(address: str) -> dict[str, Any]:
    """What collectives of a strategy, and rdmatensor.train, did."""
    from softroce import collective_task, training_task

    collectives = collective_task.run(address, 4100)
    packets = sent_packets()
    ranks = training_task.run(address, 4120)
    return {
        "collectives": collectives,
        "training": {"ranks": ranks, "packets": sent_packets() - packets},
    }


def main() -> None:
    address, *words = sys.argv[1:]
    whole = words == ["whole"]
    results = train_in_other_ways(address) if whole else {}
    job = "worker"
    line, end_of_worker = os.pipe()
    if os.fork() == 0:
        job = "ps"
        os.close(end_of_worker)
    servers = {protocol: start_server(protocol, address, job) for protocol in PROTOCOLS}
    if job == "ps":
        os.read(line, 1)  # until the worker has ended
    else:
        results |= work(servers)
        if whole:
            results["broken call"] = break_a_call(servers["grpc+rdma"].target)
            results["change"] = change(servers["grpc+rdma"].target)
        print(json.dumps(results), flush=True)
    os._exit(0)  # servers cannot be stopped


if __name__ == "__main__":
    main()
