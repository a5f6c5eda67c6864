# SPDX-License-Identifier: Apache-2.0
"""What the processes have in common while Keras's fit runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ..errors import UsageError
from . import operations
from .optimizer import exchange_of, move_outwards, sync_of
from .process import Run, current
from .summary import Summary
from .sync.base import Synchronizer


def callbacks(*, backup: str | Path | None = None, warmup_epochs: float = 0) -> list[Any]:
    """The callbacks that fit() needs in every process. Put them before your own.

    They copy rank 0's model and optimizer to all processes before the first step; average the metrics of
    each epoch, so that callbacks that stop training or change the rate decide alike; average what layers
    such as BatchNormalization have gathered; and leave the progress bar to rank 0, which prints a table of
    what each process did at the end.

    `backup` is a folder in which rank 0 keeps the last epoch; fit() goes on after it when the program
    starts again. `warmup_epochs` raises the learning rate during the first epochs, from its value divided
    by the number of processes.
    """
    run = current()
    found: list[Any] = [_Together(run, Path(backup) if backup is not None else None)]
    if warmup_epochs > 0:
        found.append(_Warmup(run, warmup_epochs))
    if run.size > 1:
        found.append(Summary(run))
    return found


def on_rank_0(callback: Any) -> Any:
    """The callback in rank 0, and one that does nothing elsewhere: for checkpoints, logs, and messages."""
    return callback if current().rank == 0 else keras.callbacks.Callback()


def broadcast_variables(run: Run, variables: Sequence[Any], root: int, name: str) -> None:
    """Sets variables to their values in `root`. Their order, types and shapes are the same everywhere."""
    if run.size == 1:
        return
    by_type: dict[Any, list[Any]] = {}
    for each in variables:
        value = tf.convert_to_tensor(each)
        if value.dtype.is_bool or not (value.dtype.is_floating or value.dtype.is_integer):
            continue  # such as the state of a string table, which no process changes
        by_type.setdefault(value.dtype, []).append((each, value))
    for dtype, members in by_type.items():
        started = operations.start(
            run.handle,
            "broadcast",
            [value for _, value in members],
            f"{name}, {dtype.name}",
            root=root,
        )
        for (variable, _), value in zip(members, started.finish(), strict=True):
            variable.assign(value)


class _Together(keras.callbacks.Callback):  # type: ignore[misc]
    def __init__(self, run: Run, backup: Path | None) -> None:
        super().__init__()
        self._run = run
        self._backup = backup
        self._in_fit = False
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
        epoch = self._restore() if self._run.rank == 0 else 0
        if self._run.size > 1:
            if not model.built:
                raise UsageError(
                    "the model is not built: build it before fit(), so that all processes can start with "
                    "the same weights"
                )
            # Seeds differ on purpose: processes drop out different units.
            of_model = [each for each in model.variables if "seed_generator" not in each.path]
            of_optimizer = list(optimizer.variables) if optimizer is not None else []
            broadcast_variables(self._run, [*of_model, *of_optimizer], 0, "the model at the start")
            numbers = operations.broadcast(self._run, np.int64(epoch), 0, "the epoch at the start")
            epoch = int(numbers)
        if epoch:
            model._initial_epoch = epoch
            self._restore_own()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if logs and "loss" in logs and type(self._sync).observe is not Synchronizer.observe:
            mean, count = self._shown if batch >= self._shown[1] else (0.0, 0)
            total = float(logs["loss"]) * (batch + 1) - mean * count
            self._sync.observe(total / (batch + 1 - count))
            self._shown = (float(logs["loss"]), batch + 1)

    def on_train_end(self, logs: Any = None) -> None:
        self._in_fit = False
        exchange = exchange_of(getattr(self.model, "optimizer", None))
        if exchange is not None and type(self._sync).conclude is not Synchronizer.conclude:
            exchange.conclude(
                self.model.trainable_variables, int(self.model.optimizer.iterations.numpy())
            )
        self._sync.finish()

    def on_test_begin(self, logs: Any = None) -> None:
        if self._in_fit:
            self._average_statistics()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._average_statistics()
        if logs and self._run.size > 1 and self._sync.waits:
            names = sorted(logs)
            values = tf.constant([float(np.mean(logs[name])) for name in names], tf.float64)
            means = operations.all_reduce(
                self._run, values, "mean", f"metrics of an epoch ({', '.join(names)})"
            )
            logs.update(zip(names, (float(each) for each in means), strict=True))
        if self._backup is not None:
            self._save_own()
            if self._run.rank == 0:
                self._save(epoch + 1)

    def _average_statistics(self) -> None:
        """Averages what layers gather while they train, such as means and variances of batches."""
        statistics = [
            each
            for each in self.model.non_trainable_variables
            if tf.as_dtype(each.dtype).is_floating and "seed_generator" not in each.path
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

    def _restore(self) -> int:
        """The epoch after the last one that was kept; 0 if there is none."""
        if self._backup is None:
            return 0
        state = self._backup / "state.json"
        try:
            kept = json.loads(state.read_text())
        except FileNotFoundError:
            return 0
        except ValueError as error:
            raise UsageError(f"{state} is not what callbacks(backup=...) writes: {error}") from None
        self.model.load_weights(self._backup / kept["weights"])
        return int(kept["epoch"])

    def _own_file(self) -> Path:
        assert self._backup is not None
        return self._backup / f"rank_{self._run.rank}.npz"

    def _own_variables(self) -> list[Any]:
        """Those that differ between processes whose models do: parameters, and the optimizer's state."""
        return [*self.model.trainable_variables, *self.model.optimizer.variables]

    def _save_own(self) -> None:
        """Keeps what this process has for itself: the synchronizer's state, and parameters that differ."""
        exchange = exchange_of(getattr(self.model, "optimizer", None))
        if exchange is None or self._backup is None:
            return
        self._backup.mkdir(parents=True, exist_ok=True)
        together = self._sync.waits and not self._sync.apart
        variables = [] if together else self._own_variables()
        exchange.save(self._own_file(), [tf.convert_to_tensor(each).numpy() for each in variables])

    def _restore_own(self) -> None:
        exchange = exchange_of(getattr(self.model, "optimizer", None))
        if exchange is None or self._backup is None:
            return
        for variable, value in zip(
            self._own_variables(), exchange.restore(self._own_file()), strict=False
        ):
            variable.assign(value)

    def _save(self, epoch: int) -> None:
        assert self._backup is not None
        self._backup.mkdir(parents=True, exist_ok=True)
        weights = f"epoch_{epoch}.weights.h5"
        self.model.save_weights(self._backup / weights)
        # The state names the new weights at once or not at all.
        written = self._backup / "state.json.new"
        written.write_text(json.dumps({"epoch": epoch, "weights": weights}))
        written.replace(self._backup / "state.json")
        for old in self._backup.glob("epoch_*.weights.h5"):
            if old.name != weights:
                old.unlink()


class _Warmup(keras.callbacks.Callback):  # type: ignore[misc]
    def __init__(self, run: Run, epochs: float) -> None:
        super().__init__()
        self._size = run.size
        self._epochs = epochs
        self._epoch = 0
        self._rate = 0.0

    def on_train_begin(self, logs: Any = None) -> None:
        optimizer = self.model.optimizer
        inner = getattr(optimizer, "inner_optimizer", optimizer)
        if isinstance(inner._learning_rate, keras.optimizers.schedules.LearningRateSchedule):
            raise UsageError(
                "warmup_epochs and a learning rate schedule contradict each other: let the schedule warm up"
            )
        if not self.params.get("steps"):
            raise UsageError(
                "warmup_epochs needs steps_per_epoch, because the data has no known length"
            )
        self._rate = float(optimizer.learning_rate.numpy())

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        done = (self._epoch + batch / self.params["steps"]) / self._epochs
        if done >= 1.0 + 1.0 / (self.params["steps"] * self._epochs):
            return
        share = min(done, 1.0)
        self.model.optimizer.learning_rate = self._rate * (share + (1 - share) / self._size)
