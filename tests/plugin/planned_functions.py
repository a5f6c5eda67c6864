# SPDX-License-Identifier: Apache-2.0
"""Runs functions of TensorFlow 2 whose bodies lie on this process (the chief) and on a worker; prints
what they returned, and the chief's and the worker's statistics of the steps after the first ones.

The functions are traced again for other shapes. In the end they are forgotten.
"""

from __future__ import annotations

import gc
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
import tensorflow as tf

import rdmatensor.tensorflow
from support.clusters import Task
from support.ports import free_ports

SHAPES = (1000, 50_000, 200_000, 1000)
STEPS = 10
# The tasks agree on places during the first step and shortly after it, which no one event ends.
AGREE_S = 1.0


def _make(variable: Any) -> Any:
    @tf.function(reduce_retracing=False)
    def step(x: Any) -> Any:
        with tf.device("/job:worker/task:0"):
            there = x * 2 + variable[0]
        with tf.device("/job:chief/task:0"):
            back = there + 1
        with tf.device("/job:worker/task:0"):
            variable.assign_add([1.0])
            return tf.reduce_max(back), tf.reduce_min(back)

    return step


def _run(step: Any, size: int) -> list[float]:
    return [float(each) for each in step(tf.ones([size]))]


def main() -> None:
    """See the module."""
    cluster = {job: [f"127.0.0.1:{free_ports(1)[0]}"] for job in ("chief", "worker")}
    worker = Task(cluster, "worker", 0, "grpc+rdma", Path(tempfile.mkdtemp()) / "worker")
    try:
        worker.wait_until_ready()
        tf.config.experimental_connect_to_cluster(
            tf.train.ClusterSpec(cluster), job_name="chief", task_index=0, protocol="grpc+rdma"
        )
        with tf.device("/job:worker/task:0"):
            variable = tf.Variable([0.0])
        step = _make(variable)
        results, phases = [], []
        for size in SHAPES:
            results += [_run(step, size) for _ in range(2)]
            time.sleep(AGREE_S)
            rdmatensor.tensorflow.reset_stats()
            worker.ask("reset")
            results += [_run(step, size) for _ in range(STEPS)]
            phases.append([rdmatensor.tensorflow.stats(), worker.ask("stats")])
        del step
        gc.collect()
        time.sleep(AGREE_S)
        left = [rdmatensor.tensorflow.stats(), worker.ask("stats")]
        print(json.dumps({"results": results, "phases": phases, "left": left}), flush=True)
    finally:
        worker.kill()
    # The connection to the worker keeps threads that wait for it for ever.
    os._exit(0)


if __name__ == "__main__":
    main()
