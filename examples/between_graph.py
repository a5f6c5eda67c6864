# SPDX-License-Identifier: Apache-2.0
"""Between-graph replication of TensorFlow 1: each worker builds the graph; parameter servers hold variables.

    rdmatensor launch -n 2 --ps 1 --no-chief examples/between_graph.py

Follows TensorFlow's guide "Distributed TensorFlow". Only the protocol of the server mentions grpc+rdma.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any

import numpy as np
import tensorflow as tf

BATCH, STEPS = 32, 60
PIXELS, CLASSES = 64, 10

v1 = tf.compat.v1


def pictures(count: int) -> tuple[Any, Any]:
    """Returns noisy copies of ten patterns, and the number of each copy's pattern."""
    random = np.random.default_rng(seed=1)
    patterns = random.normal(size=(CLASSES, PIXELS))
    labels = random.integers(CLASSES, size=count)
    return (patterns[labels] + random.normal(size=(count, PIXELS))).astype("float32"), labels


def train(server: Any, cluster: Any, index: int) -> None:
    """Trains, in a worker."""
    x, labels = v1.placeholder(tf.float32, [None, PIXELS]), v1.placeholder(tf.int64, [None])
    with v1.device(v1.train.replica_device_setter(cluster=cluster)):
        step = v1.train.get_or_create_global_step()
        hidden = v1.get_variable("hidden", [PIXELS, 128], use_resource=True)
        output = v1.get_variable("output", [128, CLASSES], use_resource=True)
    with v1.device(f"/job:worker/task:{index}"):
        logits = tf.nn.relu(x @ hidden) @ output
        loss = tf.reduce_mean(
            tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
        )
        update = v1.train.GradientDescentOptimizer(0.05).minimize(loss, global_step=step)
    missing = v1.report_uninitialized_variables()
    all_x, all_labels = pictures(2000)
    random = np.random.default_rng(seed=index)
    losses = []
    # Workers connect only to parameter servers, so they do not wait for each other.
    talks_to = v1.ConfigProto(device_filters=["/job:ps", f"/job:worker/task:{index}"])
    with v1.Session(server.target, config=talks_to) as session:
        if index == 0:
            session.run(v1.global_variables_initializer())
        while len(session.run(missing)) > 0:
            time.sleep(0.1)
        for _ in range(STEPS):
            rows = random.integers(len(all_x), size=BATCH)
            feeds = {x: all_x[rows], labels: all_labels[rows]}
            losses.append(session.run([loss, update], feeds)[0])
    for name, some in (("first", losses[:10]), ("last", losses[-10:])):
        print(f"{name} 10 steps: loss {float(np.mean(some))!r}")


def main() -> None:
    """Runs in every task."""
    v1.disable_eager_execution()
    config = json.loads(os.environ["TF_CONFIG"])
    job, index = config["task"]["type"], config["task"]["index"]
    cluster = tf.train.ClusterSpec(config["cluster"])
    server = tf.distribute.Server(
        cluster, job_name=job, task_index=index, protocol=config.get("rpc_layer", "grpc")
    )
    if job == "ps":
        server.join()
    else:
        train(server, cluster, index)


if __name__ == "__main__":
    main()
