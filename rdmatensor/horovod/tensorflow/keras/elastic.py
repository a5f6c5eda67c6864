# SPDX-License-Identifier: Apache-2.0
"""Go on after processes were lost: horovod.tensorflow.keras.elastic."""

from __future__ import annotations

from typing import Any

import keras

from ..elastic import State, TensorFlowKerasState, run

__all__ = [
    "CommitStateCallback",
    "KerasState",
    "UpdateBatchStateCallback",
    "UpdateEpochStateCallback",
    "run",
]


class KerasState(TensorFlowKerasState):
    """A model of Keras, which is built, its optimizer, and other objects."""

    def __init__(self, model: Any, optimizer: Any = None, **kwargs: Any) -> None:
        super().__init__(model, optimizer, **kwargs)


class _Callback(keras.callbacks.Callback):  # type: ignore[misc]
    def __init__(self, state: State) -> None:
        super().__init__()
        self.state: Any = state


class CommitStateCallback(_Callback):
    """Commit the state each `batches_per_commit` batches, and at the end of each epoch."""

    def __init__(self, state: State, batches_per_commit: int = 1) -> None:
        super().__init__(state)
        self._each = self._left = batches_per_commit

    def on_train_begin(self, logs: Any = None) -> None:
        """Count anew."""
        self._left = self._each

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Count a batch."""
        self._left -= 1
        if self._left == 0:
            self.state.commit()
            self._left = self._each

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Commit the state."""
        self.state.commit()


class UpdateBatchStateCallback(_Callback):
    """Set `state.batch` to the number of the batch that has ended; to 0 at the end of each epoch."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Set the number of the batch."""
        self.state.batch = batch

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Set it to 0."""
        self.state.batch = 0


class UpdateEpochStateCallback(_Callback):
    """Set `state.epoch` to the number of epochs that have ended, also before fit() was called again."""

    def on_train_begin(self, logs: Any = None) -> None:
        """Count on from the epochs that the state has."""
        self._before = self.state.epoch

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Set the number of epochs."""
        self.state.epoch = self._before + epoch + 1
