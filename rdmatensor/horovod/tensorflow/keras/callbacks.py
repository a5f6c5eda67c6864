# SPDX-License-Identifier: Apache-2.0
"""Horovod's callbacks for fit() of Keras 3.

A process may have more callbacks than others, such as a ModelCheckpoint in rank 0, as long as these
communicate nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ....errors import UsageError
from ....train.backend.optimizers import leaves_of
from ....train.backend.tensorflow import operations
from ..functions import broadcast_variables
from ..process import global_process_set, internal_errors, members_of, rank, size

__all__ = [
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
]


class BroadcastGlobalVariablesCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Copy the model and its optimizer from one process to the others, before the first step of fit().

    A model that is not built before its first step, because it has no Input, is copied after that step.
    `local_variables` stay.
    """

    def __init__(
        self, root_rank: int, device: str = "", local_variables: Iterable[Any] | None = None
    ) -> None:
        super().__init__()
        self.root_rank = root_rank
        self.broadcast_done = False
        self._local = {id(each) for each in local_variables or ()}

    def register_local_var(self, var: Any) -> None:
        """Let a variable stay as it is."""
        self._local.add(id(var))

    def on_train_begin(self, logs: Any = None) -> None:
        """Copy what is built."""
        if self.model.built:
            for each in leaves_of(self.model.optimizer):
                if not each.built:
                    each.build(self.model.trainable_variables)
            self._copy()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Copy what the first step has built."""
        self._copy()

    def _copy(self) -> None:
        if self.broadcast_done:
            return
        found = (*self.model.variables, *self.model.optimizer.variables)
        kept = [
            each
            for each in found
            if not {id(each), id(getattr(each, "value", each))} & self._local
            and tf.as_dtype(each.dtype) != tf.string
        ]
        broadcast_variables(kept, self.root_rank)
        self.broadcast_done = True


class MetricAverageCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Replace the logs of each epoch by their means over all processes, for callbacks that follow it."""

    def __init__(self, device: str = "") -> None:
        super().__init__()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Average the logs. Processes with logs of other names get Disagreement."""
        run = members_of(global_process_set)
        if not logs or run.size == 1:
            return
        names = sorted(logs)
        values = [np.asarray(logs[name], np.float64) for name in names]
        detail = operations.listed(
            "metrics of an epoch",
            [f"{k} {list(each.shape)}" for k, each in zip(names, values, strict=True)],
        )
        mine = tf.constant(np.concatenate([each.ravel() for each in values]))
        with internal_errors():
            mean = operations.all_reduce(run, mine, "mean", detail).numpy()
        ends = np.cumsum([each.size for each in values])
        for name, value, part in zip(names, values, np.split(mean, ends[:-1]), strict=True):
            logs[name] = part.reshape(value.shape) if value.ndim else float(part[0])


class LearningRateScheduleCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Set the rate to `initial_lr * multiplier(epoch)` from `start_epoch` on, up to before `end_epoch`.

    With `staircase` it is set at the beginning of each epoch; without, before each batch, and `multiplier`
    gets fractions of epochs. A number instead of a function is taken to the power of the epochs since
    `start_epoch`. With `momentum_correction`, the velocity of an optimizer that has a momentum is scaled as
    its rate. All processes use it alike.
    """

    def __init__(
        self,
        initial_lr: float,
        multiplier: float | Callable[[float], float],
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
    ) -> None:
        super().__init__()
        if initial_lr is None:
            raise UsageError("give initial_lr, the rate to multiply")
        self.initial_lr, self.start_epoch, self.end_epoch = initial_lr, start_epoch, end_epoch
        self.staircase, self.momentum_correction = staircase, momentum_correction
        self.steps_per_epoch = steps_per_epoch
        self.current_epoch = 0
        self.multiplier: Any = multiplier
        if not callable(multiplier):
            base = multiplier
            self.multiplier = lambda epoch: base ** (epoch - start_epoch)

    def on_train_begin(self, logs: Any = None) -> None:
        """Find the number of steps. Raises UsageError if it is unknown, or if there is a schedule."""
        self.steps_per_epoch = self.steps_per_epoch or self.params.get("steps")
        if not self.staircase and not self.steps_per_epoch:
            raise UsageError(
                f"{type(self).__name__} needs steps_per_epoch: the data has no known length"
            )
        for each in leaves_of(self.model.optimizer):
            if not isinstance(each._learning_rate, keras.Variable):
                raise UsageError(
                    f"{type(self).__name__}: a schedule sets the rate of {each.name}: give it a number"
                )

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Note the epoch."""
        self.current_epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Set the rate, if it is this callback's turn."""
        epoch = self.current_epoch
        if epoch < self.start_epoch or (self.end_epoch is not None and epoch >= self.end_epoch):
            return
        if not self.staircase:
            assert self.steps_per_epoch
            self._set(self.initial_lr * self.multiplier(epoch + batch / self.steps_per_epoch))
        elif batch == 0:
            self._set(self.initial_lr * self.multiplier(epoch))

    def _set(self, rate: float) -> None:
        for each in leaves_of(self.model.optimizer):
            before = float(each.learning_rate.numpy())
            each.learning_rate = rate
            # Keras's velocity has the rate in it, so that to scale it is to scale the momentum of this step.
            velocities = getattr(each, "momentums", None) or getattr(each, "_momentums", None)
            if (
                self.momentum_correction
                and getattr(each, "momentum", None)
                and before
                and velocities
            ):
                for velocity in velocities if rate != before else ():
                    velocity.assign(velocity * (rate / before))

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Log the rate as "lr"."""
        if logs is not None:
            logs["lr"] = float(leaves_of(self.model.optimizer)[0].learning_rate.numpy())


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """Raise the rate from `initial_lr / size()` to `initial_lr` during the first epochs."""

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: int = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
    ) -> None:
        def multiplier(epoch: float) -> float:
            # The last batch of the last epoch has the full rate.
            assert self.steps_per_epoch
            epoch += 1.0 / self.steps_per_epoch
            return 1.0 / size() * (epoch * (size() - 1) / warmup_epochs + 1)

        super().__init__(
            initial_lr, multiplier, 0, warmup_epochs, False, momentum_correction, steps_per_epoch
        )
        self.verbose = verbose

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Log the rate, and say in rank 0 when it is reached."""
        super().on_epoch_end(epoch, logs)
        if self.verbose and rank() == 0 and epoch == (self.end_epoch or 0) - 1:
            reached = float(leaves_of(self.model.optimizer)[0].learning_rate.numpy())
            print(f"\nEpoch {epoch + 1}: finished gradual learning rate warmup to {reached:g}.")


class BestModelCheckpoint(keras.callbacks.ModelCheckpoint):  # type: ignore[misc]
    """Save the best model. Set `filepath` before fit(), or give it."""

    def __init__(
        self,
        monitor: str = "val_loss",
        verbose: int = 0,
        save_weights_only: bool = False,
        mode: str = "auto",
        save_freq: Any = "epoch",
        filepath: str | None = None,
    ) -> None:
        default = "best.weights.h5" if save_weights_only else "best.keras"
        super().__init__(
            filepath or default,
            monitor=monitor,
            verbose=verbose,
            save_best_only=True,
            save_weights_only=save_weights_only,
            mode=mode,
            save_freq=save_freq,
        )
        self.filepath = filepath

    def on_train_begin(self, logs: Any = None) -> None:
        """Raise UsageError if there is no file to save to."""
        super().on_train_begin(logs)
        if not self.filepath:
            raise UsageError("BestModelCheckpoint: set its filepath before fit()")
