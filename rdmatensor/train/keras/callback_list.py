# SPDX-License-Identifier: Apache-2.0
"""Take a place in the list that Keras calls callbacks in, and look at the others: at the files they write."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any
from zlib import crc32

import keras
import numpy as np

from ...errors import UsageError
from ..backend.base import backend
from ..backend.optimizers import leaves_of, sync_of
from ..run.session import Session
from ..sync.base import Parameters
from .pauses import Pauses, Plan, Wish


def list_of(callback: Any) -> Any:
    """Return Keras's list that the callback is in, while it sets up its callbacks; None if there is none.

    Keras tells callbacks of their model and not of their list, whose order decides what comes last.
    """
    for names in _callers():
        found = names.get("self")
        if isinstance(found, keras.callbacks.CallbackList) and callback in found.callbacks:
            return found
    return None


def batches_of(model: Any) -> Any:
    """Return Keras's iterator over the batches that a model is fitted to, while callbacks are called."""
    for names in _callers():
        if names.get("self") is model and "epoch_iterator" in names:
            return names["epoch_iterator"]
    return None


def _callers() -> Iterator[dict[str, Any]]:
    """Yield the variables of the functions that are being called, the last one first."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame.f_locals
        frame = frame.f_back


def files_of(callbacks: Iterable[Any]) -> list[str]:
    """Return the paths of files that callbacks of Keras write."""
    paths = [
        each.filepath if isinstance(each, keras.callbacks.ModelCheckpoint) else each.filename
        for each in callbacks
        if isinstance(each, (keras.callbacks.ModelCheckpoint, keras.callbacks.CSVLogger))
    ]
    return [str(Path(each).resolve()) for each in paths]


def refuse_common(run: Session, files: list[str], most: int) -> None:
    """Raise UsageError if several processes would write one file. `most` is the largest number of files."""
    if most == 0:
        return
    marks = [crc32(each.encode()) for each in files]
    mine = np.array([marks + [-1] * (most - len(marks))], np.int64)
    rows = backend().all_gather(run, mine, "files that callbacks write")
    of_ranks = [{mark for mark in row.tolist() if mark >= 0} for row in rows]
    for mark in set[int]().union(*of_ranks):
        ranks = [rank for rank, found in enumerate(of_ranks) if mark in found]
        if len(ranks) > 1:
            names = [file for file, of in zip(files, marks, strict=True) if of == mark]
            raise UsageError(
                f"callbacks of ranks {ranks} write one file{': ' if names else ''}{''.join(names[:1])}. Give "
                "rt.on_rank_0(callback) to all processes, or a path of its own to each"
            )


class FirstAndLast(keras.callbacks.Callback):  # type: ignore[misc]
    """The base of a callback that keeps models together: it comes first, and with `last` after all others.

    `last` has methods of Keras's LambdaCallback.
    """

    def __init__(self, run: Session, plan: Plan, **last: Callable[..., None]) -> None:
        super().__init__()
        self._run = run
        self._pauses = Pauses(run, plan)
        self._looked_at = True
        # Whether a callback has ended training here, between two steps; and whether all processes do so now.
        self._ends = self._stops = False
        self._optimizers: list[Any] = []
        last["on_train_batch_end"] = lambda *_, **__: self._end_alike()
        self._last = keras.callbacks.LambdaCallback(**last)
        self._list: Any = None
        self._shown = (0.0, 0)  # the loss that fit showed last, a mean over so many batches

    def set_model(self, model: Any) -> None:
        """Take the model, and put a callback at the end of Keras's list."""
        super().set_model(model)
        self._list = list_of(self)
        if self._list is not None and self._last not in self._list.callbacks:
            self._list.callbacks.append(self._last)

    def set_params(self, params: Any) -> None:
        """Take the parameters of fit, and silence the progress bar elsewhere than in rank 0."""
        if params and self._run.rank != 0:
            params["verbose"] = 0  # the progress bar, which comes later, reads this very dict
        super().set_params(params)

    @property
    def _waits(self) -> bool:
        """Whether processes need each other."""
        return self._run.size > 1 and all(sync_of(each).waits for each in self._optimizers)

    def _common(self, variables: Sequence[Any]) -> list[Any]:
        """Return those that all processes shall have in common: not what layers remember of sequences."""
        own = {
            id(each)
            for layer in self.model._flatten_layers()
            if getattr(layer, "stateful", False)
            for each in keras.tree.flatten(getattr(layer, "states", None) or [])
        }
        return [each for each in variables if id(each) not in own]

    def _observe(self, batch: int, logs: Any) -> None:
        """Tell synchronizers of the mean loss since the last call."""
        observers = [
            sync
            for sync in map(sync_of, self._optimizers)
            if isinstance(sync, Parameters) and type(sync).observe is not Parameters.observe
        ]
        if observers and logs and "loss" in logs:
            mean, count = self._shown if batch >= self._shown[1] else (0.0, 0)
            shown = float(logs["loss"])
            for sync in observers:
                sync.observe((shown * (batch + 1) - mean * count) / (batch + 1 - count))
            self._shown = shown, batch + 1

    def _others_look(self) -> bool:
        """Whether a callback that is not ours may look at the model, or end training."""
        silent = (keras.callbacks.History, keras.callbacks.ProgbarLogger)
        ours = __name__.rpartition(".")[0]
        return self._list is None or any(
            not isinstance(each, silent)
            and not type(each).__module__.startswith(ours)
            and each is not self._last
            for each in self._list.callbacks
        )

    def _begin_pauses(self) -> None:
        self._ends = self._stops = False
        self._pauses.begin()

    def _pause(self, batches: int) -> Wish:
        """Return what all processes do after so many more batches."""
        return self._pauses.after(batches, self._waits, self._looked_at, self._ends)

    def _stop_after(self, wish: Wish) -> None:
        """Stop after this step, if all processes do."""
        self._stops = wish.stop or wish.end
        self.model.stop_training |= self._stops

    def _end_alike(self) -> None:
        """Let what a callback ends here, between two steps, end in all processes after the same step.

        Until all end, this process goes on.
        """
        if self.model.stop_training and not self._stops and self._waits:
            self._ends, self.model.stop_training = True, False

    def _stop_together(self) -> None:
        """Stop in all processes if one stops. Raises UsageError if learning rates differ."""
        stops = self.model.stop_training or self._ends
        if not self._waits:
            return
        rates = [_rate_of(leaf) for each in self._optimizers for leaf in leaves_of(each)]
        mine = np.array([[float(stops), *rates]], np.float64)
        found = backend().all_gather(self._run, mine, "whether to stop, and learning rates")
        self.model.stop_training = bool(found[:, 0].any())
        apart = any(sync_of(each).apart for each in self._optimizers)
        if not apart and (found[:, 1:] != found[0, 1:]).any():
            raise UsageError(
                f"learning rates differ between processes after an epoch: {found[:, 1:].tolist()}. Give the "
                "callback that changes them to all processes"
            )


def _rate_of(optimizer: Any) -> float:
    rate = optimizer._learning_rate
    return float(rate.numpy()) if isinstance(rate, keras.Variable) else 0.0  # schedules count steps
