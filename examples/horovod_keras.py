# SPDX-License-Identifier: Apache-2.0
"""A program for Horovod with Keras, of which only the import line has changed.

    rdmatensor launch -np 2 examples/horovod_keras.py

Each process trains on rows of its own, and the processes average their gradients.
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf

import rdmatensor.horovod.tensorflow.keras as hvd  # before: import horovod.tensorflow.keras as hvd

hvd.init()
gpus = tf.config.list_physical_devices("GPU")
if gpus:
    tf.config.set_visible_devices(gpus[hvd.local_rank()], "GPU")

random = np.random.default_rng(seed=1)
labels = random.integers(10, size=4096)
pictures = random.normal(size=(10, 64))[labels] * 2 + random.normal(size=(4096, 64))
x, y = pictures[hvd.rank() :: hvd.size()], labels[hvd.rank() :: hvd.size()]

model = tf.keras.Sequential(
    [tf.keras.layers.Dense(128, activation="relu"), tf.keras.layers.Dense(10)]
)
rate = 1e-3 * hvd.size()
model.compile(
    optimizer=hvd.DistributedOptimizer(tf.keras.optimizers.Adam(rate)),
    loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
callbacks = [
    hvd.callbacks.BroadcastGlobalVariablesCallback(0),
    hvd.callbacks.MetricAverageCallback(),
    hvd.callbacks.LearningRateWarmupCallback(initial_lr=rate, warmup_epochs=2),
]
history = model.fit(
    x, y, batch_size=32, epochs=4, callbacks=callbacks, verbose=1 if hvd.rank() == 0 else 0
)
if hvd.rank() == 0:
    print(f"{hvd.size()} processes, accuracy {history.history['accuracy'][-1]:.3f}", flush=True)
