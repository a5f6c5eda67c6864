# SPDX-License-Identifier: Apache-2.0
"""The callback that keeps the models of all processes together while Keras's fit runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ..errors import UsageError
from . import operations
from .backup import Backup, Kept
from .cut.strips import strip_of
from .equal import broadcast_variables
from .optimizer import exchange_of, move_outwards, sync_of
from .process import Run
from .seeds import Streams
from .sync.base import Synchronizer
from .tables.placement import is_owned


class Together(keras.callbacks.Callback):  # type: ignore[misc]
    """Does what callbacks() says of weights, statistics and backups."""

    def __init__(self, run: Run, backup: Path | None) -> None:
        super().__init__()
        self._run = run
        self._folder = backup
        self._backup: Backup | None = None
        self._in_fit = False
        self._streams: Streams | None = None
        self._sync = Synchronizer()
        self._shown = (0.0, 0)  # the loss that fit showed last, a mean over so many batches

    def set_params(self, params: Any) -> None:
        if params and self._run.rank != 0:
            params["verbose"] = 0  # the progress bar, which comes later, reads this very dict
        super().set_params(params)

    def on_train_begin(self, logs: Any = None) -> None:
        self._in_fit = True
        model = self.model
        optimizer = getattr(model, "optimizer", None)
        if optimizer is not None:
            move_outwards(optimizer)
            if model.built and not optimizer.built:
                optimizer.build(model.trainable_variables)
            self._sync = sync_of(optimizer)
        if self._folder is not None:
            self._backup = Backup(self._folder, self._run, model, self._sync)
        kept = self._backup.restore() if self._backup is not None else Kept(0, 0)
        if self._run.returns:
            kept = self._come_back()
        elif self._run.size > 1:
            if not model.built:
                raise UsageError(
                    "the model is not built: build it before fit(), so that all processes can start with "
                    "the same weights"
                )
            of_optimizer = self._sync.shared(optimizer) if optimizer is not None else []
            variables = [*model.variables, *of_optimizer]
            broadcast_variables(self._run, variables, 0, "the model at the start")
            numbers = operations.broadcast(
                self._run, np.array(kept, np.int64), 0, "the epoch at the start"
            )
            kept = Kept(*(int(each) for each in numbers))
            operations.trim()
        if kept.epoch:
            model._initial_epoch = kept.epoch
            if self._backup is not None and not self._run.returns:
                self._backup.restore_own(kept)
        if model.built and (self._run.size > 1 or self._backup is not None):
            self._streams = Streams(self._run, model.variables)
            if self._run.returns:
                self._streams.part_alone()
            else:
                self._streams.resume(self._backup.seeds if self._backup is not None else None)
        if self._backup is not None:
            self._backup.seeds = None  # those of the next epoch are others

    def _come_back(self) -> Kept:
        """Takes the model of another process, and goes on in the epoch in which that is."""
        optimizer = self.model.optimizer
        exchange = exchange_of(optimizer)
        if exchange is None or not self.model.built:
            raise UsageError(
                "this process comes back to a training under way: build the model, and compile it with "
                "distribute(), before fit()"
            )
        step = exchange.come_back(self.model.trainable_variables)
        inner = getattr(optimizer, "inner_optimizer", optimizer)
        inner.iterations.assign(step)
        return Kept(step // (self.params.get("steps") or step + 1), 0)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if logs and "loss" in logs and type(self._sync).observe is not Synchronizer.observe:
            mean, count = self._shown if batch >= self._shown[1] else (0.0, 0)
            total = float(logs["loss"]) * (batch + 1) - mean * count
            self._sync.observe(total / (batch + 1 - count))
            self._shown = (float(logs["loss"]), batch + 1)

    def on_train_end(self, logs: Any = None) -> None:
        self._in_fit = False
        self._sync.leave(self.model)
        self._sync.release(self.model.optimizer)
        exchange = exchange_of(getattr(self.model, "optimizer", None))
        if exchange is not None and type(self._sync).conclude is not Synchronizer.conclude:
            exchange.conclude(
                self.model.trainable_variables, int(self.model.optimizer.iterations.numpy())
            )
        self._sync.finish()

    def on_test_begin(self, logs: Any = None) -> None:
        if self._in_fit:
            self._sync.settle(self.model)
            self._average_statistics()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._sync.settle(self.model)
        self._average_statistics()
        if self._backup is not None or self._run.saves:
            self._sync.gather(self.model.optimizer)
        if self._backup is not None:
            self._backup.save_own(epoch + 1)
            if self._streams is not None and (self._run.size == 1 or self._sync.waits):
                self._backup.seeds = self._streams.gather().tolist()
            if self._run.size > 1 and self._sync.waits:
                operations.barrier(self._run, "a backup")  # all or none
            self._backup.save(epoch + 1)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._sync.release(self.model.optimizer)
        self._sync.resume(self.model)

    def _average_statistics(self) -> None:
        """Averages what layers gather while they train, such as means and variances of batches."""
        statistics = [
            each
            for each in self.model.non_trainable_variables
            if tf.as_dtype(each.dtype).is_floating and not is_owned(each) and strip_of(each) is None
        ]
        if self._run.size == 1 or not statistics or not self._sync.waits:
            return
        by_type: dict[str, list[Any]] = {}
        for each in statistics:
            by_type.setdefault(each.dtype, []).append(each)
        for dtype, members in by_type.items():
            started = operations.start(
                self._run.handle,
                "all_reduce",
                [tf.convert_to_tensor(each) for each in members],
                f"statistics of layers, {dtype}",
                **operations.averaging(tf.as_dtype(dtype), self._run.size),
            )
            for variable, value in zip(members, started.finish(), strict=True):
                variable.assign(value)
