# SPDX-License-Identifier: Apache-2.0
"""A program for test_programs.py: two processes with half of each batch train as one does."""

from __future__ import annotations

import os

os.environ["KERAS_BACKEND"] = "jax"

import jax
import keras
import numpy as np

BATCH, STEPS = 16, 8


def model_after_fit(
    x: np.ndarray, y: np.ndarray, batch: int
) -> tuple[list[float], list[np.ndarray]]:
    keras.utils.set_random_seed(1)
    layers = [
        keras.Input((8,)),
        keras.layers.Dense(16, activation="relu"),
        keras.layers.BatchNormalization(),
        keras.layers.Dense(1),
    ]
    model = keras.Sequential(layers)
    model.compile(optimizer=keras.optimizers.SGD(0.05), loss="mse")
    history = model.fit(x, y, batch_size=batch, epochs=2, verbose=0, shuffle=False)
    weights = [np.asarray(each.value.addressable_data(0)) for each in model.variables]
    return history.history["loss"], weights


keras.distribution.initialize()
rank, size = jax.process_index(), jax.process_count()
x = np.random.default_rng(0).normal(size=(STEPS, size, BATCH, 8)).astype("float32")
y = x.sum(-1, keepdims=True)
alone, expected = model_after_fit(x.reshape(-1, 8), y.reshape(-1, 1), size * BATCH)
keras.distribution.set_distribution(keras.distribution.DataParallel(auto_shard_dataset=False))
losses, weights = model_after_fit(x[:, rank].reshape(-1, 8), y[:, rank].reshape(-1, 1), BATCH)
np.testing.assert_allclose(losses, alone, rtol=1e-5)
for got, wanted in zip(weights, expected, strict=True):
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-6)
print(f"process {rank} of {size} has the model of one process, loss {losses[-1]:.4f}")
