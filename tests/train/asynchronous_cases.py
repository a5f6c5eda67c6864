# SPDX-License-Identifier: Apache-2.0
"""What processes of the tests do with asynchronous synchronizers in fit."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import keras
from sklearn.datasets import load_digits

import rdmatensor.train as rt


class _Watch(keras.callbacks.Callback):  # type: ignore[misc]
    """Brings processes together after the first step, which they trace for seconds, and sees one die."""

    def __init__(self, sync: Any, doomed: int) -> None:
        super().__init__()
        self._sync, self._doomed = sync, doomed
        self.batches = 0
        self.slowest = 0.0

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._began = time.monotonic()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.batches += 1
        if self.batches == 1:
            rt.barrier("after the first step")
            return
        self.slowest = max(self.slowest, time.monotonic() - self._began)
        if self.batches == 40 and rt.rank() == self._doomed:
            print("training", flush=True)
        # The others come so far, and go on when they have seen the death.
        members = self._sync.members
        while self.batches == 100 and not members.store.member(self._doomed).gone:
            time.sleep(0.01)


def fit_with_a_kill(doomed: int, backup: str) -> Any:
    """Trains in fit with PullGossip, and one process dies on the way."""
    rt.init(timeout=100)
    x, y = load_digits(return_X_y=True)
    x = (x / 16).astype("f")
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [keras.Input((64,)), keras.layers.Dense(32, "relu"), keras.layers.Dense(10)]
    )
    sync = rt.PullGossip()
    model.compile(
        rt.distribute(keras.optimizers.SGD(0.1), sync),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    watch = _Watch(sync, doomed)
    model.fit(
        x[:1072],
        y[:1072],
        batch_size=16,
        epochs=5,
        callbacks=[*rt.callbacks(backup=backup), watch],
        verbose=0,
    )
    return {
        "steps": int(model.optimizer.iterations.numpy()),
        "slowest": watch.slowest,
        "lost": sync.members.lost,
        "kept": sorted(each.name for each in Path(backup).iterdir()),
    }
