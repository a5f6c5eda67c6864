# SPDX-License-Identifier: Apache-2.0
"""What processes of the tests do with asynchronous synchronizers in fit."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import keras
from sklearn.datasets import load_digits

import rdmatensor.train as rt
from rdmatensor import UsageError

TOGETHER = 100  # batches after the return
PATIENCE_S = 200.0


class _Watch(keras.callbacks.Callback):  # type: ignore[misc]
    """Brings processes together after the first step, which they trace for seconds; sees one die and come
    back, and ends training some batches later."""

    def __init__(self, sync: Any, doomed: int) -> None:
        super().__init__()
        self._sync, self._doomed = sync, doomed
        self.batches = self.together = 0
        self.slowest = 0.0
        self._first = 0
        self._back = False
        self._end = time.monotonic() + PATIENCE_S

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._began = time.monotonic()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.batches += 1
        returns = rt.init().returns
        if self.batches == 1 and not returns:
            rt.ops.barrier("after the first step")
        if self.batches == 1:
            self._first = self._member().generation
            return
        self.slowest = max(self.slowest, time.monotonic() - self._began)
        if self.batches == 40 and rt.rank() == self._doomed and not returns:
            print("training", flush=True)
        self._back = self._back or returns or self._is_back()
        self.together += self._back
        if self.together == TOGETHER or time.monotonic() > self._end:
            self.model.stop_training = True

    def _member(self) -> Any:
        other = (self._doomed + 1) % rt.size()
        return self._sync.members.store.member(self._doomed if rt.rank() != self._doomed else other)

    def _is_back(self) -> bool:
        member = self._member()
        return bool(
            rt.rank() != self._doomed and member.connected and member.generation != self._first
        )


def fit_with_a_kill(doomed: int, backup: str) -> Any:
    """Trains in fit with PullGossip. One process dies on the way, and one is started in its place."""
    run = rt.init(timeout=100)
    x, y = load_digits(return_X_y=True)
    x = (x / 16).astype("f")
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [keras.Input((64,)), keras.layers.Dense(32, "relu"), keras.layers.Dense(10)]
    )
    refused = ""
    if run.returns:
        try:
            rt.distribute("sgd")
        except UsageError as error:
            refused = str(error)
    sync = rt.sync.PullGossip()
    model.compile(
        rt.distribute(keras.optimizers.SGD(0.1), sync),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    watch = _Watch(sync, doomed)
    history = model.fit(
        x[:1072],
        y[:1072],
        batch_size=16,
        epochs=10**6,
        callbacks=[*rt.callbacks(backup=backup), watch],
        verbose=0,
    )
    return {
        "steps": int(model.optimizer.iterations.numpy()),
        "batches": watch.batches,
        "together": watch.together,
        "accuracy": history.history["accuracy"][0],
        "epochs": history.epoch,
        "refused": refused,
        "slowest": watch.slowest,
        "kept": sorted(each.name for each in Path(backup).iterdir()),
    }
