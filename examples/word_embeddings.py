# SPDX-License-Identifier: Apache-2.0
"""Learns which words of a text occur together, in several processes that share two tables of embeddings.

    apt install dict-gcide
    rdmatensor launch -n 2 examples/word_embeddings.py /usr/share/dictd/gcide.dict.dz [STEPS]

A step uses a few rows of the tables, so its gradients are rows (tf.IndexedSlices), and only these travel. The
text is any file, also a compressed one (.gz, .dz); of a long one, the first 4 MB are used.
"""

from __future__ import annotations

import gzip
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import keras
import numpy as np

import rdmatensor.train as rt

WORDS, WIDTH, WINDOW = 20000, 64, 4
BATCH = 256  # of each process


def words_of(path: Path) -> list[str]:
    """The words at the beginning of the file."""
    with gzip.open(path) if path.suffix in (".gz", ".dz") else path.open("rb") as file:
        return re.findall(r"[a-z]+", file.read(4 << 20).decode(errors="replace").lower())


def pairs(numbers: Any, count: int) -> tuple[Any, Any]:
    """Two words, and whether they are neighbours; half of the pairs are made up."""
    random = np.random.default_rng(1)
    at = random.integers(len(numbers) - WINDOW, size=count)
    real = random.integers(2, size=count)
    near, anywhere = at + random.integers(1, WINDOW, size=count), random.permutation(at)
    return np.stack([numbers[at], numbers[np.where(real, near, anywhere)]], 1), real


def main() -> None:
    run = rt.init()
    steps = int(sys.argv[2]) if len(sys.argv) > 2 else 200
    words = words_of(Path(sys.argv[1]))
    known = {word: i + 1 for i, (word, _) in enumerate(Counter(words).most_common(WORDS - 1))}
    numbers = np.array([known.get(word, 0) for word in words], "i4")
    keras.utils.set_random_seed(1)
    inputs = keras.Input((2,), dtype="int32")
    one = keras.layers.Embedding(WORDS, WIDTH)(inputs[:, 0])
    other = keras.layers.Embedding(WORDS, WIDTH)(inputs[:, 1])
    model = keras.Model(inputs, keras.layers.Dot(1)([one, other]))
    model.compile(
        rt.distribute(
            keras.optimizers.SGD(20.0)
        ),  # it changes the rows that were used, and no others
        loss=keras.losses.BinaryCrossentropy(from_logits=True),
        metrics=[keras.metrics.BinaryAccuracy(threshold=0.0)],
    )
    history = model.fit(
        *rt.shard(pairs(numbers, steps * BATCH * run.size)),
        batch_size=BATCH,
        epochs=2,
        callbacks=rt.callbacks(),
    )
    if run.rank == 0:
        print(f"{run.size} processes, loss {history.history['loss'][-1]:.3f}", flush=True)


main()
