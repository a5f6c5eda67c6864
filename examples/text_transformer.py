# SPDX-License-Identifier: Apache-2.0
"""A small transformer that learns to continue a text, letter by letter, in several processes.

    apt install dict-gcide
    rdmatensor launch -n 2 examples/text_transformer.py /usr/share/dictd/gcide.dict.dz [STEPS]

The text is any file, also a compressed one (.gz, .dz); of a long one, the first 4 MB are used. STEPS is the
number of steps of an epoch, of which there are two.
"""

from __future__ import annotations

import gzip
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import rdmatensor.train as rt

CONTEXT, WIDTH, HEADS, BLOCKS = 64, 64, 4, 2
BATCH = 16  # of each process


def text_of(path: Path) -> bytes:
    """The beginning of the file."""
    with gzip.open(path) if path.suffix in (".gz", ".dz") else path.open("rb") as file:
        return file.read(4 << 20)


class Positions(keras.layers.Layer):
    """Adds to each letter what its place means."""

    def build(self, shape: Any) -> None:
        self.table = self.add_weight(shape=shape[1:], initializer="uniform", name="table")

    def call(self, inputs: Any) -> Any:
        return inputs + self.table


def build(letters: int) -> Any:
    inputs = keras.Input((CONTEXT,), dtype="int32")
    x = Positions()(keras.layers.Embedding(letters, WIDTH)(inputs))
    for _ in range(BLOCKS):
        y = keras.layers.LayerNormalization()(x)
        x += keras.layers.MultiHeadAttention(HEADS, WIDTH // HEADS)(y, y, use_causal_mask=True)
        y = keras.layers.LayerNormalization()(x)
        x += keras.layers.Dense(WIDTH)(keras.layers.Dense(4 * WIDTH, activation="gelu")(y))
    return keras.Model(inputs, keras.layers.Dense(letters)(keras.layers.LayerNormalization()(x)))


def main() -> None:
    run = rt.init()
    steps = int(sys.argv[2]) if len(sys.argv) > 2 else 200
    letters, text = np.unique(np.frombuffer(text_of(Path(sys.argv[1])), "u1"), return_inverse=True)
    keras.utils.set_random_seed(1)
    model = build(len(letters))
    model.compile(
        rt.distribute(keras.optimizers.AdamW(2e-3, global_clipnorm=1.0)),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    # Pieces of the text at places that all processes draw alike; each takes its part of them.
    places = np.random.default_rng(1).integers(
        len(text) - CONTEXT - 1, size=2 * steps * BATCH * run.size
    )
    pieces = tf.data.Dataset.from_tensor_slices(places).map(
        lambda at: tf.constant(text, tf.int32)[at : at + CONTEXT + 1]
    )
    batches = rt.shard(pieces).map(lambda piece: (piece[:-1], piece[1:])).batch(BATCH)
    history = model.fit(batches.repeat(), steps_per_epoch=steps, epochs=2, callbacks=rt.callbacks())
    if run.rank == 0:
        print(f"{run.size} processes, loss {history.history['loss'][-1]:.3f}", flush=True)


main()
