# SPDX-License-Identifier: Apache-2.0
"""What processes of the tests do to go on from a backup, with each synchronizer in Keras's fit."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np

import rdmatensor.train as rt
from rdmatensor import UsageError

EPOCHS, KEPT = 3, 2


class _Copy(keras.callbacks.Callback):  # type: ignore[misc]
    """Copies the backup as it is after some epochs."""

    def __init__(self, backup: Path, copied: Path) -> None:
        super().__init__()
        self._backup, self._copied = backup, copied

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if epoch == KEPT:
            rt.ops.barrier("all have kept it")
            if rt.rank() == 0:
                shutil.copytree(self._backup, self._copied)
            rt.ops.barrier("the copy")


def _begins_late() -> None:
    begin = rt.sync.Hierarchical.begin

    def late(*arguments: Any) -> Any:
        time.sleep(0.3)
        return begin(*arguments)

    rt.sync.Hierarchical.begin = late  # type: ignore


def _fit(text: str, backup: Path, *more: Any, adam: bool = True) -> list[float]:
    """The weights after training."""
    run = rt.init()
    keras.utils.set_random_seed(5 + run.rank)
    model = keras.Sequential(
        [keras.Input((12,)), keras.layers.Dense(16, activation="tanh"), keras.layers.Dense(4)]
    )
    sync = eval(text, {name: getattr(rt.sync, name) for name in rt.sync.__all__})
    model.compile(
        rt.distribute(keras.optimizers.Adam(0.01) if adam else keras.optimizers.SGD(0.1), sync),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    numbers = np.random.default_rng(3)
    data = numbers.standard_normal((64, 12)).astype("f"), numbers.integers(0, 4, 64)
    model.fit(
        *rt.shard(data),
        batch_size=16 // run.size,
        shuffle=False,
        epochs=EPOCHS,
        callbacks=[*rt.callbacks(backup=backup), *more],
        verbose=0,
    )
    return [float(x) for each in model.trainable_variables for x in np.ravel(each)]


def resumes(
    each: list[str], once: list[str], backups: str, adam: bool = True, late: bool = False
) -> Any:
    """Weights after training without a break, and with one, by synchronizer; of those in `once`, the former.

    The last process may be `late` to begin. What it does meanwhile must be what others do before."""
    run = rt.init(timeout=200)
    if late and run.rank == run.size - 1:
        _begins_late()
    found = {text: [_fit(text, Path(backups, text), adam=adam)] for text in once}
    for number, text in enumerate(each):
        whole, copied = Path(backups, f"whole {number}"), Path(backups, f"{number}")
        first = _fit(text, whole, _Copy(whole, copied), adam=adam)
        rt.ops.barrier()
        again = Path(backups, f"again {number}")
        if rt.rank() == 0:
            shutil.copytree(copied, again)
        rt.ops.barrier()
        found[text] = [first, _fit(text, again, adam=adam)]
    return found


def resumed(each: list[str], backups: str) -> Any:
    """The same folders with another number of processes: weights, or the error."""
    rt.init(timeout=200)
    found: dict[str, Any] = {}
    for number, text in enumerate(each):
        try:
            found[text] = _fit(text, Path(backups, f"{number}"))
        except UsageError as error:
            found[text] = str(error)
    return found
