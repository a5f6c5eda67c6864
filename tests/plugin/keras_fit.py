# SPDX-License-Identifier: Apache-2.0
"""Keras 3's fit under MultiWorkerMirroredStrategy, with the repair. Run by test_keras_fit.py."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

import rdmatensor.tensorflow


def main() -> None:
    rdmatensor.tensorflow.repair_keras()
    rdmatensor.tensorflow.repair_keras()  # changes nothing
    keras.utils.set_random_seed(1)
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    numbers = np.random.default_rng(1)
    x = numbers.standard_normal((56, 8)).astype("f")  # the last batch is shorter
    data = tf.data.Dataset.from_tensor_slices((x, x.sum(1, keepdims=True))).batch(16)
    with strategy.scope():
        model = keras.Sequential(
            [keras.Input((8,)), keras.layers.Dense(4, activation="tanh"), keras.layers.Dense(1)]
        )
        model.compile(keras.optimizers.Adam(0.01), loss="mse", metrics=["mae"])
    history = model.fit(data, epochs=2, validation_data=data, verbose=0).history
    for name, values in sorted(history.items()):
        print(name, *map(float.hex, map(float, values)), flush=True)
    print("evaluate", *map(float.hex, map(float, model.evaluate(data, verbose=0))), flush=True)


main()
