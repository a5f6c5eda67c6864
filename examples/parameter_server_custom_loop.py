# SPDX-License-Identifier: Apache-2.0
"""A coordinator schedules steps on workers, which look up embeddings on parameter servers.

    rdmatensor launch -n 2 --ps 2 examples/parameter_server_custom_loop.py

Follows the second half of TensorFlow's tutorial "Parameter server training with ParameterServerStrategy".
When a worker dies, the coordinator gives its steps to others until it is back.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import tensorflow as tf

BATCH = 64
EPOCHS, STEPS = 4, 30
WORDS, WIDTH, LENGTH = 2000, 32, 8


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


def sentences() -> tuple[Any, Any]:
    """Returns rows of words, and which are good: a sentence is good if most of its words are."""
    words = np.random.default_rng(seed=1).integers(WORDS, size=(4000, LENGTH))
    return words, ((words % 2).mean(axis=1) > 0.5).astype("float32")


def shuffled() -> Any:
    """Returns the sentences in an endless random order."""
    data = tf.data.Dataset.from_tensor_slices(sentences())
    return data.shuffle(4000).repeat().batch(BATCH)


def train(resolver: Any) -> None:
    """Runs in the chief."""
    partitioner = tf.distribute.experimental.partitioners.FixedShardsPartitioner(2)
    strategy = tf.distribute.ParameterServerStrategy(resolver, variable_partitioner=partitioner)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        table = tf.Variable(tf.random.stateless_normal([WORDS, WIDTH], seed=[1, 2]), name="table")
        weights = tf.Variable(
            tf.random.stateless_normal([WIDTH, 1], seed=[3, 4]) / 8, name="weights"
        )

    @tf.function
    def step(iterator: Any) -> Any:
        words, good = next(iterator)
        with tf.GradientTape() as tape:
            # Only the rows that are looked up are sent, and only their gradients return.
            means = tf.reduce_mean(tf.nn.embedding_lookup(table, words), axis=1)
            scores = tf.squeeze(means @ tf.convert_to_tensor(weights), axis=1)
            loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(good, scores))
        variables = [*table.variables, *weights.variables]
        for variable, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
            if isinstance(gradient, tf.IndexedSlices):
                gradient = tf.IndexedSlices(200 * gradient.values, gradient.indices)
                variable.scatter_sub(gradient)
            else:
                variable.assign_sub(gradient)
        return loss

    batches = iter(coordinator.create_per_worker_dataset(shuffled))
    for epoch in range(1, EPOCHS + 1):
        losses = [coordinator.schedule(step, args=(batches,)) for _ in range(STEPS)]
        coordinator.join()
        print(f"epoch {epoch}: loss {float(np.mean(coordinator.fetch(losses)))!r}")


def main() -> None:
    """Runs in every task."""
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if resolver.task_type in ("worker", "ps"):
        serve(resolver)
    else:
        train(resolver)


if __name__ == "__main__":
    main()
