# SPDX-License-Identifier: Apache-2.0
"""Ray Train starts the workers of a MultiWorkerMirroredStrategy.

    python examples/ray_train.py [WORKERS]

Ray gives each worker a TF_CONFIG that names no protocol; use(default_protocol=True) adds grpc+rdma. Ray's
machines need rdmatensor and TensorFlow. Several hosts need RDMATENSOR_SECRET_FILE in Ray's environment.
"""

from __future__ import annotations

import sys
from typing import Any

from ray.train import ScalingConfig
from ray.train.tensorflow import TensorflowTrainer

STEPS, SIZE = 20, 1000


def train(config: dict[str, Any]) -> None:
    """Runs in each worker: fits a line to numbers, and prints which transport the gradients used."""
    import tensorflow as tf

    import rdmatensor.tensorflow

    # This must come before the strategy, which starts a server.
    rdmatensor.tensorflow.use(default_protocol=True)
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        weights = tf.Variable(tf.zeros([SIZE]))

    @tf.function
    def step():  # no annotations: Ray copies only what the code uses
        def replica():
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(weights - tf.range(SIZE, dtype=tf.float32)))
            gradient = tape.gradient(loss, weights)
            context = tf.distribute.get_replica_context()
            mean = context.all_reduce(tf.distribute.ReduceOp.MEAN, gradient)
            weights.assign_sub(0.2 * SIZE * mean)
            return loss

        return strategy.reduce(tf.distribute.ReduceOp.MEAN, strategy.run(replica), axis=None)

    for _ in range(config["steps"]):
        loss = step()
    collectives = rdmatensor.tensorflow.stats()["collectives"]
    ways = {group["transport"] for group in collectives["groups"]}
    print(f"loss {float(loss):.6f}, collectives by {ways}, {collectives['operations']}")


if __name__ == "__main__":
    workers = int(sys.argv[1]) if len(sys.argv) > 1 else 2
    TensorflowTrainer(
        train,
        train_loop_config={"steps": STEPS},
        scaling_config=ScalingConfig(num_workers=workers),
    ).fit()
