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
from rdmatensor.train.backend.tensorflow import operations
from rdmatensor.train.keras import pauses

__all__ = ["paused"]
_L = keras.layers
SYNCS: dict[str, Any] = {
    "AllReduce": rt.sync.AllReduce,
    "LocalSGD": lambda: rt.sync.LocalSGD(3),
    "ahead": lambda: rt.sync.Sharded(prefetch=True),
    "uneven": rt.sync.AllReduce,
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


class _End(keras.callbacks.Callback):  # type: ignore[misc]
    """Ends training in one process, after a step in the middle of the second epoch."""

    def __init__(self) -> None:
        super().__init__()
        self._epoch = 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch = epoch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if rt.rank() == 1 and (self._epoch, batch) == (1, 2):
            self.model.stop_training = True


class _Crash(Exception):
    pass


def _crash() -> None:
    raise _Crash


def _ask() -> None:
    if rt.rank() == rt.size() - 1:
        os.kill(os.getpid(), signal.SIGTERM)


def _fit(sync: str, *more: Any, epochs: int = 3, poison: bool = False, **arguments: Any) -> Any:
    """Losses, weights and steps. With `poison`, the last process has an example that is no number."""
    keras.utils.set_random_seed(5 + rt.rank())
    model = keras.Sequential(
        [keras.Input((6,)), _L.Dense(8, "tanh"), _L.BatchNormalization(), _L.Dense(1)]
    )
    optimizer = rt.distribute(keras.optimizers.Adam(0.01), SYNCS[sync]())
    model.compile(optimizer, loss="mse", run_eagerly=sync in ("AllReduce", "uneven"))
    numbers = np.random.default_rng(3)
    x, y = (numbers.standard_normal((80, width)).astype("f") for width in (6, 1))
    if poison:
        x[8 * rt.size() * 2 + rt.size() - 1] = np.nan  # in the third batch of the last process
    if sync == "uneven":  # the second process has two batches, and the first one five
        arguments["uneven"] = True
        x, y = x[24 * rt.rank() : 40], y[24 * rt.rank() : 40]
    else:
        x, y = rt.shard((x, y))
    history = model.fit(x, y, batch_size=8, epochs=epochs, shuffle=False, verbose=0,
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
    rt.ops.barrier("all have read it")
    return [code, state["epoch"], state["batch"]]


def paused(backups: str) -> Any:
    """Training without a break; one that ends inside an epoch, and what goes on after that."""
    rt.init(timeout=300)
    pauses._APART = 0.0  # after each step
    found: dict[str, Any] = {}
    handler = signal.getsignal(signal.SIGTERM)
    for sync in SYNCS:
        backup = Path(backups, sync)
        crash = _At(_crash)
        left = _left(
            backup,
            lambda sync=sync, backup=backup, crash=crash: _fit(
                sync, crash, backup=backup, backup_every=2, preemptible=True
            ),
        )
        count = _At(lambda: None)
        found[sync] = [_fit(sync), left, [*_fit(sync, count, backup=backup), count.batches]]
    found["handler"] = signal.getsignal(signal.SIGTERM) is handler
    backup = Path(backups, "told")
    left = _left(backup, lambda: _fit("AllReduce", _At(_ask), backup=backup, preemptible=True))
    found["told"] = [left, _fit("AllReduce", backup=backup)]
    backup = Path(backups, "limit")
    found["limit"] = [
        _fit("AllReduce", backup=backup, time_limit=1e-9),
        _fit("AllReduce", backup=backup),
    ]
    found["ended"] = [
        _fit("AllReduce", _End()),
        _fit("AllReduce", keras.callbacks.TerminateOnNaN(), poison=True),
    ]
    try:
        rt.callbacks(backup_every=2)
    except UsageError as error:
        found["refused"] = str(error)
    found["again"] = _again()
    return found


def _again() -> Any:
    """What is said after shutdown(), and the weights of a model that goes on after init()."""
    x, y = rt.shard(tuple(np.ones((16, width), np.float32) for width in (6, 1)))
    model = keras.Sequential([keras.Input((6,)), _L.Dense(4), _L.Dense(1)])
    model.compile(rt.distribute(keras.optimizers.Adam(0.01)), loss="mse")

    @tf.function
    def total(value: Any) -> Any:
        return rt.ops.all_reduce(value, "sum")

    def fit() -> Any:
        model.fit(x, y, batch_size=4, epochs=1, verbose=0, callbacks=rt.callbacks())
        return [float(each) for v in model.weights for each in np.ravel(v.numpy())]

    found, rank = [fit(), float(total(tf.constant(1.0)))], rt.rank()
    held = operations.start(rt.init().handle, "barrier", [], "held by what failed")
    held.finish()
    rt.shutdown()
    for act in (lambda: model.train_on_batch(x[:4], y[:4]), lambda: total(tf.constant(1.0)), fit):
        try:
            act()
        except (UsageError, tf.errors.OpError) as error:
            found.append(f"{type(error).__name__}: {error}")
    model.layers[0].kernel.assign_add(tf.fill([6, 4], float(rank)))
    rt.init(timeout=300)
    del held
    rt.statistics()  # those of the new group, not of the one that was held
    return [*found, fit(), float(total(tf.constant(1.0)))]
