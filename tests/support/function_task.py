# SPDX-License-Identifier: Apache-2.0
"""Runs a function over the tasks of a cluster, and prints what travels: as TensorFlow partitioned it, as it
was planned, and with grpc+rdma as servers tell it. A process of its own: it connects to the cluster for good.

    python -m support.function_task '{"ps": [...], "worker": [...]}' grpc|grpc+rdma
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import tensorflow as tf
from tensorflow.python.eager import context

from graph_analyzer import analyze, live
from support.stock_servers import sent_by

CLUSTER, PROTOCOL = json.loads(sys.argv[1]), sys.argv[2]
CHIEF = "/job:chief/replica:0/task:0"


def train_step() -> Any:
    """A training step of worker 1 with variables of two other tasks, a called function and a loop."""
    variables = []
    for number, task in enumerate(["/job:ps/task:0", "/job:worker/task:0"]):
        with tf.device(task):
            variables.append(tf.Variable(tf.ones([16, 16]), name=f"v{number}"))

    @tf.function  # type: ignore[untyped-decorator]
    def layer(x: Any, w: Any) -> Any:
        return tf.nn.relu(tf.matmul(x, w))

    @tf.function  # type: ignore[untyped-decorator]
    def step(x: Any) -> Any:
        with tf.device("/job:worker/task:1"):
            with tf.GradientTape() as tape:
                y = layer(layer(x * 2.0, variables[0]), variables[1])
                for _ in tf.range(3):
                    y = y * 2.0 + tf.reduce_sum(variables[0])
                loss = tf.reduce_sum(y)
            for variable, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
                variable.assign_sub(gradient * 0.1)
        return loss

    return step


def main() -> None:
    tf.config.experimental_connect_to_cluster(
        tf.train.ClusterSpec(CLUSTER), job_name="chief", task_index=0, protocol=PROTOCOL
    )
    step, x = train_step(), tf.ones([8, 16])
    function = step.get_concrete_function(x)
    running = context.context()
    running.enable_graph_collection()
    step(x)
    metadata = running.export_run_metadata()
    plan = analyze(function, default_device=CHIEF, optimize=True)
    found = {
        "sent": sorted(sent_by(metadata.partition_graphs)),
        "planned": [edge.key for edge in plan.edges],
        "not static": [edge.name for edge in plan.edges if edge.plan_class != "static"],
        "variables": sorted({edge.variable for edge in plan.edges if edge.variable}),
        "plan": plan.to_json(),
    }
    if PROTOCOL == "grpc+rdma":
        found["told"] = live(*CLUSTER["ps"], *CLUSTER["worker"]).to_json()
    print(json.dumps(found), flush=True)
    # Servers may be gone before the connection is.
    os._exit(0)


main()
