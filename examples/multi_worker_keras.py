# SPDX-License-Identifier: Apache-2.0
"""model.fit on several workers: MultiWorkerMirroredStrategy averages their gradients in every step.

    rdmatensor launch -n 2 examples/multi_worker_keras.py [FOLDER]

Follows TensorFlow's tutorial "Multi-worker training with Keras". Nothing in it mentions rdmatensor:
"rpc_layer" in TF_CONFIG is enough. All workers must reach FOLDER, which holds backups and the trained model.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

# Keras 3 has no fit for several workers, over any protocol. Keras 2 has one:
# pip install --no-deps 'tf_keras==2.21.*'
os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")

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


def dataset(batch: int) -> Any:
    """Returns the data of all workers. The strategy gives each worker its share."""
    data = tf.data.Dataset.from_tensor_slices(pictures(2000))
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return data.shuffle(2000, seed=2).repeat().batch(batch).with_options(options)


def compiled_model() -> Any:
    """Returns a small network."""
    layers = tf.keras.layers
    model = tf.keras.Sequential(
        [
            layers.Input((PIXELS,)),
            layers.Dense(128, activation="relu"),
            layers.Dense(CLASSES),
        ]
    )
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(tf.keras.optimizers.SGD(0.05), loss, metrics=["accuracy"])
    return model


def main() -> None:
    """Trains, saves and loads."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp())
    tf.keras.utils.set_random_seed(3)
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    place = strategy.cluster_resolver
    with strategy.scope():
        model = compiled_model()
    history = model.fit(
        dataset(BATCH * strategy.num_replicas_in_sync),
        epochs=EPOCHS,
        steps_per_epoch=STEPS,
        callbacks=[tf.keras.callbacks.BackupAndRestore(str(folder / "backup"))],
        verbose=0,
    ).history
    for epoch, (loss, accuracy) in enumerate(
        zip(history["loss"], history["accuracy"], strict=True), start=1
    ):
        print(f"epoch {epoch}: loss {loss!r}, accuracy {accuracy:.3f}")

    # Saving needs all workers. Only one result is kept.
    first = place.task_type in (None, "chief") or (place.task_type, place.task_id) == ("worker", 0)
    path = folder / ("model" if first else f"not-wanted-{place.task_id}")
    model.save(path)
    x, labels = pictures(500)
    loaded = tf.keras.models.load_model(path)
    same = np.array_equal(loaded(x), model(x))
    right = np.mean(np.argmax(loaded(x), axis=1) == labels)
    print(f"saved and loaded: {'the same' if same else 'different'}, accuracy {right:.3f}")


if __name__ == "__main__":
    main()
