# SPDX-License-Identifier: Apache-2.0
"""A custom training loop on several workers, with checkpoints.

    rdmatensor launch -n 2 examples/multi_worker_custom_loop.py [FOLDER]

Follows TensorFlow's tutorial "Custom training loop with Keras and MultiWorkerMirroredStrategy"; works with
Keras 3 and 2. All workers must reach FOLDER, which holds the checkpoints. A run that finds one continues
from it.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

BATCH = 32  # per worker
EPOCHS, STEPS = 3, 20
PIXELS, CLASSES = 64, 10


def pictures(count: int) -> tuple[Any, Any]:
    """Returns noisy copies of ten patterns, and the number of each copy's pattern."""
    random = np.random.default_rng(seed=1)
    patterns = random.normal(size=(CLASSES, PIXELS))
    labels = random.integers(CLASSES, size=count)
    return (patterns[labels] + random.normal(size=(count, PIXELS))).astype("float32"), labels


def share(context: Any) -> Any:
    """Returns the data of one worker."""
    data = tf.data.Dataset.from_tensor_slices(pictures(2000))
    data = data.shard(context.num_input_pipelines, context.input_pipeline_id)
    batch = context.get_per_replica_batch_size(BATCH * context.num_replicas_in_sync)
    return data.shuffle(1000, seed=2).repeat().batch(batch)


def new_model() -> Any:
    """Returns a small network."""
    layers = tf.keras.layers
    return tf.keras.Sequential(
        [layers.Input((PIXELS,)), layers.Dense(128, activation="relu"), layers.Dense(CLASSES)]
    )


def main() -> None:
    """Trains, with a checkpoint after each epoch."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp())
    tf.keras.utils.set_random_seed(3)
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        model = new_model()
        optimizer = tf.keras.optimizers.SGD(0.05)
        accuracy = tf.keras.metrics.SparseCategoricalAccuracy()
        done = tf.Variable(0, trainable=False, name="done")
    losses_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
    batches = iter(strategy.distribute_datasets_from_function(share))

    @tf.function
    def train_epoch(iterator: Any) -> Any:
        """Returns the mean loss of an epoch."""

        def step(batch: Any) -> Any:
            x, labels = batch
            with tf.GradientTape() as tape:
                logits = model(x, training=True)
                loss = tf.nn.compute_average_loss(losses_of(labels, logits))
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            accuracy.update_state(labels, logits)
            return loss

        total = 0.0
        for _ in tf.range(STEPS):
            loss = strategy.run(step, args=(next(iterator),))
            total += strategy.reduce(tf.distribute.ReduceOp.SUM, loss, axis=None)
        return total / STEPS

    # Reading variables needs all workers, so all of them write a checkpoint. Only one is kept.
    place = strategy.cluster_resolver
    first = place.task_type in (None, "chief") or (place.task_type, place.task_id) == ("worker", 0)
    own = folder / ("checkpoints" if first else f"not-wanted-{place.task_id}")
    checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer, done=done)
    manager = tf.train.CheckpointManager(checkpoint, own, max_to_keep=1)
    latest = tf.train.latest_checkpoint(folder / "checkpoints")
    if latest:
        checkpoint.restore(latest)
    while done.numpy() < EPOCHS:
        loss = float(train_epoch(batches))
        done.assign_add(1)
        print(f"epoch {done.numpy()}: loss {loss!r}, accuracy {float(accuracy.result()):.3f}")
        accuracy.reset_state()
        manager.save()
    if not first:
        shutil.rmtree(own, ignore_errors=True)


if __name__ == "__main__":
    main()
