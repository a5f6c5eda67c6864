# SPDX-License-Identifier: Apache-2.0
"""Steps of TensorFlow over grpc+rdma on verbs against stock gRPC, both between two processes of one host.

Meant for the SoftRoCE lab, where bench_tensorflow.py with its four processes would import TensorFlow for
minutes: here one process imports it and forks the other.

    rdmatensor softroce run --timeout 900 --memory 4000 -- \\
        env RDMATENSOR_TRANSPORTS=verbs RDMATENSOR_POLICY=rdma python bench/tf_softroce.py
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
import tensorflow as tf
from rich.console import Console
from rich.table import Table

import rdmatensor.tensorflow
from rdmatensor.demo.timing import Distribution, duration

PROTOCOLS = ("grpc", "grpc+rdma")
CASES = (("100 x 4 KB", 100, 4 << 10), ("1 x 1 MB", 1, 1 << 20), ("1 x 16 MB", 1, 16 << 20))
BLOCKS, BLOCK = (
    6,
    5,
)  # blocks of steps of each protocol, in turns; the first of each block is untimed
FLOAT = 4
ADDRESS = os.environ.get("RDMATENSOR_LAB_ADDRESSES", "127.0.0.1").split(",")[0]

v1 = tf.compat.v1


def start_server(protocol: str, job: str) -> Any:
    port = 4000 + 10 * PROTOCOLS.index(protocol)
    cluster = {"worker": [f"{ADDRESS}:{port}"], "ps": [f"{ADDRESS}:{port + 1}"]}
    return tf.distribute.Server(
        tf.train.ClusterSpec(cluster), job_name=job, task_index=0, protocol=protocol
    )


@contextmanager
def steps(target: str, count: int, nbytes: int) -> Iterator[Callable[[], Any]]:
    """A callable that runs one step: the worker takes the last element of each variable of the server."""
    elements = nbytes // FLOAT
    with tf.Graph().as_default():
        with tf.device("/job:ps/task:0/cpu:0"):
            variables = [
                v1.get_variable(
                    f"v{i}", initializer=tf.fill([elements], float(i)), use_resource=True
                )
                for i in range(count)
            ]
            values = [variable.read_value() for variable in variables]
        with tf.device("/job:worker/task:0/cpu:0"):
            last = tf.stack([value[-1] for value in values])
        with v1.Session(target) as session:
            session.run(v1.global_variables_initializer())
            yield session.make_callable(last)


def measure(servers: dict[str, Any], count: int, nbytes: int) -> dict[str, Distribution]:
    times: dict[str, list[float]] = {protocol: [] for protocol in PROTOCOLS}
    with (
        steps(servers["grpc"].target, count, nbytes) as stock,
        steps(servers["grpc+rdma"].target, count, nbytes) as rdma,
    ):
        run = dict(zip(PROTOCOLS, (stock, rdma), strict=True))
        for block in range(BLOCKS):
            for protocol in PROTOCOLS if block % 2 else reversed(PROTOCOLS):
                for step in range(BLOCK + 1):
                    begin = time.perf_counter()
                    if run[protocol]().tolist() != list(range(count)):
                        raise SystemExit(f"tf_softroce: {protocol} delivered wrong values")
                    if step > 0 and block > 0:
                        times[protocol].append(time.perf_counter() - begin)
    return {protocol: Distribution.of(times[protocol]) for protocol in PROTOCOLS}


def main() -> None:
    line, end_of_worker = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(end_of_worker)
    servers = {p: start_server(p, "worker" if child else "ps") for p in PROTOCOLS}
    if child == 0:
        os.read(line, 1)  # until the worker has ended
        os._exit(0)
    table = Table(title="TensorFlow steps over one host's RDMA device", title_justify="left")
    for column in ("a step", *PROTOCOLS, "ratio"):
        table.add_column(column, justify="left" if column == "a step" else "right")
    for name, count, nbytes in CASES:
        found = measure(servers, count, nbytes)
        cells = [
            f"{duration(d.median)} ({duration(d.p10)} .. {duration(d.p90)})" for d in found.values()
        ]
        ratio = found["grpc"].median / found["grpc+rdma"].median
        table.add_row(name, *cells, f"{ratio:.2f}x")
    Console(width=100).print(table)
    print(rdmatensor.tensorflow.stats()["transports"], flush=True)
    os._exit(0)  # servers cannot be stopped


if __name__ == "__main__":
    main()
