# SPDX-License-Identifier: Apache-2.0
"""Raise the learning rate during the first epochs."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from ...errors import UsageError
from ..run.session import Session
from .optimizers import leaves

# An attribute of an optimizer: the rate to reach, and the one that was set last.
_WARM = "_rdmatensor_warm"


class Warmup(keras.callbacks.Callback):  # type: ignore[misc]
    """Callback that raises the rate from the optimizer's over the number of processes to the full one."""

    def __init__(self, run: Session, epochs: float) -> None:
        super().__init__()
        self._size = run.size
        self._epochs = epochs
        self._epoch = 0
        self._goals: list[tuple[Any, float]] = []

    def set_model(self, model: Any) -> None:
        """Take the model, and the rates to reach."""
        super().set_model(model)
        # Before fit begins: a backup brings back the rate that was reached, which is not the one to reach.
        self._goals = []
        for each in leaves(model):
            if isinstance(each._learning_rate, keras.Variable):
                rate = float(each._learning_rate.numpy())
                goal, reached = getattr(each, _WARM, (rate, rate))
                self._goals.append((each, goal if rate == reached else rate))

    def on_train_begin(self, logs: Any = None) -> None:
        """Raise UsageError if a schedule sets the rate, or if an epoch has no known number of steps."""
        if len(self._goals) < len(leaves(self.model)):
            raise UsageError(
                "warmup_epochs and a learning rate schedule contradict each other: let the schedule warm up"
            )
        if not self.params.get("steps"):
            raise UsageError(
                "warmup_epochs needs steps_per_epoch, because the data has no known length"
            )

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Note which epoch begins."""
        self._epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Set the rate of this step."""
        done = (self._epoch + batch / self.params["steps"]) / self._epochs
        if done >= 1.0 + 1.0 / (self.params["steps"] * self._epochs):
            return
        share = min(done, 1.0)
        for optimizer, goal in self._goals:
            rate = goal * (share + (1 - share) / self._size)
            optimizer.learning_rate = rate
            object.__setattr__(optimizer, _WARM, (goal, float(np.float32(rate))))
