# SPDX-License-Identifier: Apache-2.0
"""Sends tensors that the plugin's allocator did not make to a worker; prints what came back as JSON.

This process is the chief. One tensor is older than its server, the other one is NumPy's memory.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
import numpy as np
import tensorflow as tf

import rdmatensor.tensorflow
from support.clusters import Task
from support.ports import free_ports

ELEMENTS = 100_000


@tf.function
def _total(x: Any) -> Any:
    with tf.device("/job:worker/task:0"):
        return tf.reduce_sum(x * 2)


def main() -> None:
    """See the module."""
    cluster = {job: [f"127.0.0.1:{free_ports(1)[0]}"] for job in ("chief", "worker")}
    worker = Task(cluster, "worker", 0, "grpc+rdma", Path(tempfile.mkdtemp()) / "worker")
    try:
        worker.wait_until_ready()
        older = tf.fill([ELEMENTS], 1.0)
        tf.config.experimental_connect_to_cluster(
            tf.train.ClusterSpec(cluster), job_name="chief", task_index=0, protocol="grpc+rdma"
        )
        borrowed = tf.experimental.dlpack.from_dlpack(np.full(ELEMENTS, 3, "f").__dlpack__())
        totals = [float(_total(x)) for x in (older, borrowed)]
        stats = {"chief": rdmatensor.tensorflow.stats(), "worker": worker.ask("stats")}
        print(json.dumps({"totals": totals, "stats": stats}), flush=True)
    finally:
        worker.kill()
    # The connection to the worker keeps threads that wait for it for ever.
    os._exit(0)


if __name__ == "__main__":
    main()
