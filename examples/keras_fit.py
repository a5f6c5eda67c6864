# SPDX-License-Identifier: Apache-2.0
"""Keras 3's model.fit in several processes, with one line for the optimizer and one for the data.

    rdmatensor launch -n 2 examples/keras_fit.py [FOLDER]

The processes train one model on scikit-learn's pictures of handwritten digits, or on made-up ones without it.
With FOLDER, training goes on where it was when the program was ended. Without `rdmatensor launch`, one
process trains alone.
"""

from __future__ import annotations

import sys
from typing import Any

import keras
import numpy as np

import rdmatensor.train as rt

BATCH = 64  # of all processes together
EPOCHS = 5


def pictures() -> tuple[Any, Any]:
    """Returns 1792 pictures of 8 by 8 pixels, and the digits on them."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        random = np.random.default_rng(seed=1)
        labels = random.integers(10, size=1792)
        noise = random.normal(size=(1792, 64))
        return (random.normal(size=(10, 64))[labels] + noise).astype("float32"), labels
    digits = load_digits()
    return (digits.data[:1792] / 16).astype("float32"), digits.target[:1792]


def main() -> None:
    run = rt.init()
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [
            keras.Input((64,)),
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dense(10),
        ]
    )
    model.compile(
        rt.distribute(keras.optimizers.Adam(3e-3)),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    history = model.fit(
        *rt.shard(pictures()),
        batch_size=BATCH // run.size,
        epochs=EPOCHS,
        callbacks=rt.callbacks(backup=sys.argv[1] if len(sys.argv) > 1 else None),
    )
    if run.rank == 0 and history.history:
        loss, accuracy = history.history["loss"][-1], history.history["accuracy"][-1]
        print(f"{run.size} processes, loss {loss:.4f}, accuracy {accuracy:.3f}", flush=True)


main()
