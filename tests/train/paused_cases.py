# SPDX-License-Identifier: Apache-2.0
"""What processes of the tests do to stop inside an epoch, and to go on there."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import rdmatensor.train as rt
from rdmatensor import UsageError
from rdmatensor.train import pauses

__all__ = ["paused"]
_L = keras.layers
SYNCS: dict[str, Any] = {
    "AllReduce": rt.AllReduce,
    "LocalSGD": lambda: rt.LocalSGD(3),
    "ahead": lambda: rt.ShardedOptimizer(ahead=True),
}


class _At(keras.callbacks.Callback):  # type: ignore[misc]
    """Acts after a batch of the second epoch, and counts batches."""

    def __init__(self, act: Any) -> None:
        super().__init__()
        self._act, self._epoch, self.batches = act, 0, 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch = epoch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.batches += 1
        if (self._epoch, batch) == (1, 3):
            self._act()


class _Crash(Exception):
    pass


def _crash() -> None:
    raise _Crash


def _ask() -> None:
    if rt.rank() == rt.size() - 1:
        os.kill(os.getpid(), signal.SIGTERM)


def _fit(sync: str, *more: Any, epochs: int = 3, **arguments: Any) -> Any:
    """Losses, weights and steps."""
    keras.utils.set_random_seed(5 + rt.rank())
    model = keras.Sequential(
        [keras.Input((6,)), _L.Dense(8, "tanh"), _L.BatchNormalization(), _L.Dense(1)]
    )
    optimizer = rt.distribute(keras.optimizers.Adam(0.01), SYNCS[sync]())
    model.compile(optimizer, loss="mse", run_eagerly=sync == "AllReduce")
    numbers = np.random.default_rng(3)
    x, y = (numbers.standard_normal((80, width)).astype("f") for width in (6, 1))
    history = model.fit(*rt.shard((x, y)), batch_size=8, epochs=epochs, shuffle=False, verbose=0,
                        callbacks=[*rt.callbacks(**arguments), *more])  # fmt: skip
    weights = [float(v) for each in model.weights for v in np.ravel(tf.convert_to_tensor(each))]
    return [history.history.get("loss", []), weights, int(model.optimizer.iterations.numpy())]


def _left(backup: Path, act: Any) -> Any:
    """How training ended, and where the backup is in its epochs."""
    try:
        act()
        code: Any = None
    except (SystemExit, _Crash) as error:
        code = getattr(error, "code", "crash")
    state = json.loads((backup / "state.json").read_text())
    rt.barrier("all have read it")
    return [code, state["epoch"], state["batch"]]


def paused(backups: str) -> Any:
    """Training without a break; one that ends inside an epoch, and what goes on after that."""
    rt.init(timeout=300)
    pauses._APART = 0.0  # after each step
    found: dict[str, Any] = {}
    for sync in SYNCS:
        backup = Path(backups, sync)
        crash = _At(_crash)
        left = _left(
            backup,
            lambda sync=sync, backup=backup, crash=crash: _fit(
                sync, crash, backup=backup, backup_every=2
            ),
        )
        count = _At(lambda: None)
        found[sync] = [_fit(sync), left, [*_fit(sync, count, backup=backup), count.batches]]
    backup = Path(backups, "told")
    left = _left(backup, lambda: _fit("AllReduce", _At(_ask), backup=backup, preemptible=True))
    found["told"] = [left, _fit("AllReduce", backup=backup)]
    backup = Path(backups, "limit")
    found["limit"] = [
        _fit("AllReduce", backup=backup, time_limit=1e-9),
        _fit("AllReduce", backup=backup),
    ]
    try:
        rt.callbacks(backup_every=2)
    except UsageError as error:
        found["refused"] = str(error)
    return found
