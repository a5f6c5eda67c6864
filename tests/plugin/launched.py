# SPDX-License-Identifier: Apache-2.0
"""A worker that knows its place from TF_CONFIG alone: launched.py use|stock. Prints what came of it, as JSON.

With "use" the program asks for grpc+rdma itself; with "stock" it does not know of it.
"""

from __future__ import annotations

import json
import os
import sys
import threading

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
import tensorflow as tf

import rdmatensor.tensorflow

SECONDS = 60.0


def main() -> None:
    """Sum up the numbers of the workers, one more than each one's index."""
    timer = threading.Timer(SECONDS, os._exit, [3])
    timer.daemon = True
    timer.start()
    if sys.argv[1] == "use":
        rdmatensor.tensorflow.use(default_protocol=True)
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    strategy = tf.distribute.MultiWorkerMirroredStrategy()

    @tf.function
    def step() -> tf.Tensor:
        mine = strategy.run(lambda: tf.fill([1000], float(resolver.task_id + 1)))
        return strategy.reduce(tf.distribute.ReduceOp.SUM, mine, axis=None)

    total = step()
    stats = rdmatensor.tensorflow.stats()
    said = {
        "protocol": resolver.rpc_layer,
        "target": resolver.master(),
        "sum": [float(total[0]), float(total[-1])],
        "servers": stats["servers"],
        "collectives": stats["collectives"],
    }
    # The other worker still needs this one to end its step.
    print(json.dumps(said), flush=True)
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main()
