# SPDX-License-Identifier: Apache-2.0
"""model.fit with parameter servers: workers compute at their own pace, and parameter servers hold variables.

    rdmatensor launch -n 2 --ps 2 examples/parameter_server_keras.py

Follows TensorFlow's tutorial "Parameter server training with ParameterServerStrategy". Only the protocol of
the servers mentions grpc+rdma: it is "rpc_layer" in TF_CONFIG.
"""

from __future__ import annotations

import os
from typing import Any

# Keras 3 has no fit for parameter servers, over any protocol. Keras 2 has one:
# pip install --no-deps 'tf_keras==2.21.*'
os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")

import numpy as np
import tensorflow as tf

BATCH = 32
EPOCHS, STEPS = 4, 20
PIXELS, CLASSES = 64, 10


def serve(resolver: Any) -> None:
    """Runs in a worker or parameter server."""
    config = tf.compat.v1.ConfigProto()
    # A waiting worker may occupy a thread of a parameter server, so few processors need more threads.
    config.inter_op_parallelism_threads = max(4, os.cpu_count() or 1)
    server = tf.distribute.Server(
        resolver.cluster_spec(),
        job_name=resolver.task_type,
        task_index=resolver.task_id,
        config=config,
        protocol=resolver.rpc_layer or "grpc",
    )
    server.join()


def pictures(context: Any = None) -> Any:
    """Returns noisy copies of ten patterns, and the number of each copy's pattern."""
    random = np.random.default_rng(seed=1)
    patterns = random.normal(size=(CLASSES, PIXELS))
    labels = random.integers(CLASSES, size=2000)
    x = (patterns[labels] + random.normal(size=(2000, PIXELS))).astype("float32")
    return tf.data.Dataset.from_tensor_slices((x, labels)).shuffle(2000).repeat().batch(BATCH)


def train(resolver: Any) -> None:
    """Runs in the chief."""
    strategy = tf.distribute.ParameterServerStrategy(
        resolver,
        # Splits large variables over all parameter servers.
        variable_partitioner=tf.distribute.experimental.partitioners.MinSizePartitioner(
            min_shard_bytes=4 << 10, max_shards=2
        ),
    )
    tf.keras.utils.set_random_seed(3)
    layers = tf.keras.layers
    with strategy.scope():
        model = tf.keras.Sequential(
            [
                layers.Input((PIXELS,)),
                layers.Dense(128, activation="relu"),
                layers.Dense(CLASSES),
            ]
        )
        loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(tf.keras.optimizers.legacy.SGD(0.05), loss, steps_per_execution=5)
    data = tf.keras.utils.experimental.DatasetCreator(pictures)
    history = model.fit(data, epochs=EPOCHS, steps_per_epoch=STEPS, verbose=0).history
    for epoch, loss in enumerate(history["loss"], start=1):
        print(f"epoch {epoch}: loss {loss!r}")


def main() -> None:
    """Runs in every task."""
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if resolver.task_type in ("worker", "ps"):
        serve(resolver)
    else:
        train(resolver)


if __name__ == "__main__":
    main()
