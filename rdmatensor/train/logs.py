# SPDX-License-Identifier: Apache-2.0
"""The callback that makes the logs of each epoch those of all processes."""

from __future__ import annotations

from typing import Any

import keras

from .backend.tensorflow.interim import until_fit_ends
from .backend.tensorflow.optimizer import sync_of
from .keras_metrics import Counted, counted, merged, watch
from .run.session import Session


class Logs(keras.callbacks.Callback):  # type: ignore[misc]
    """Merges the metrics of training and validation once an epoch, in one operation."""

    def __init__(self, run: Session) -> None:
        super().__init__()
        self._run = run
        self._in_fit = False
        self._counted: dict[str, Counted] = {}

    def on_train_begin(self, logs: Any = None) -> None:
        self._in_fit = True
        until_fit_ends(self.model, self._end_fit)
        self._counted.clear()
        watch(self.model)

    def _end_fit(self) -> None:
        self._in_fit = False

    def on_test_begin(self, logs: Any = None) -> None:
        self._keep("")  # Keras resets the metrics now

    def on_test_end(self, logs: Any = None) -> None:
        self._keep("val_")

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if not self._counted:
            self._keep("")
        if logs and self._counted:
            logs.update(merged(self._run, self.model, logs, self._counted))
        self._counted.clear()

    def _keep(self, start: str) -> None:
        if self._in_fit and sync_of(getattr(self.model, "optimizer", None)).waits:
            self._counted[start] = counted(self.model)
