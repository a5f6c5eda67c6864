# SPDX-License-Identifier: Apache-2.0
"""The callback that raises the learning rate during the first epochs."""

from __future__ import annotations

from typing import Any

import keras

from ..errors import UsageError
from .process import Run


class Warmup(keras.callbacks.Callback):  # type: ignore[misc]
    """Sets the rate of each step, from the optimizer's divided by the number of processes."""

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
