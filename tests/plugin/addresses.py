# SPDX-License-Identifier: Apache-2.0
"""Servers of one cluster, all in this process: addresses.py JSON, a list of [host, BIND_ADDRESS], one
for each task. Task 0 exchanges a tensor with every other one; prints the results and the statistics.
"""

from __future__ import annotations

import json
import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
import tensorflow as tf

import rdmatensor.config
import rdmatensor.tensorflow
from support.ports import free_ports

ELEMENTS = 50_000


def main() -> None:
    """See the module."""
    v1 = tf.compat.v1
    tasks = json.loads(sys.argv[1])
    ports = free_ports(len(tasks))
    cluster = {"worker": [f"{task[0]}:{port}" for task, port in zip(tasks, ports, strict=True)]}
    servers = []
    for index, (_, bind_address) in enumerate(tasks):
        rdmatensor.config.set("BIND_ADDRESS", bind_address)
        servers.append(
            tf.distribute.Server(cluster, "worker", index, protocol="grpc+rdma", start=True)
        )
    with tf.Graph().as_default():
        with tf.device("/job:worker/task:0"):
            there = tf.fill([ELEMENTS], v1.placeholder_with_default(2.0, []))
        results = []
        for index in range(1, len(tasks)):
            with tf.device(f"/job:worker/task:{index}"):
                back = there + float(index)
            with tf.device("/job:worker/task:0"):
                results.append(tf.reduce_sum(back) / ELEMENTS)
        with v1.Session(f"grpc://127.0.0.1:{ports[0]}") as session:
            averages = [float(each) for each in session.run(results)]
    stats = rdmatensor.tensorflow.stats()
    # A host that is no address of this machine, as others may know it.
    rdmatensor.config.set("BIND_ADDRESS", "")
    tf.distribute.Server({"elsewhere": ["198.51.100.7:2222"]}, protocol="grpc+rdma", start=False)
    print(json.dumps({"averages": averages, "stats": stats}), flush=True)
    # Servers cannot be stopped: leave without ceremony.
    os._exit(0)


if __name__ == "__main__":
    main()
