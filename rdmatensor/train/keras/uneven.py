# SPDX-License-Identifier: Apache-2.0
"""Let processes with different numbers of batches train together."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from ...errors import UsageError
from ..backend.distributed import averages_gradients
from ..backend.interim import until_fit_ends
from ..backend.optimizers import sync_of
from ..backend.rows import count_of
from ..backend.tensorflow import operations
from ..backend.tensorflow.agree import label
from ..backend.tensorflow.equal import differing
from ..backend.tensorflow.parts import part_of
from ..backend.tensorflow.weighing import Presence
from ..run.session import Session
from .callback_list import list_of
from .metrics import metrics_of
from .optimizers import distributed

# An attribute of a model while it trains so.
_PRESENCE = "_rdmatensor_presence"


def presence_of(model: Any) -> Presence | None:
    """Return the object that tells which processes have a batch; None if none may run short."""
    found: Presence | None = vars(model).get(_PRESENCE)
    return found


class Uneven(keras.callbacks.Callback):  # type: ignore[misc]
    """Callback by which a process that has no more batches takes part in the steps of those that have some.

    Before each step, processes tell each other whether they have a batch, and how many rows. Who has none
    trains on an earlier batch, which counts nothing: it adds nothing to gradients and losses, and what its
    layers and metrics gather is put back. Callbacks see the same steps in all processes.
    """

    def __init__(self, run: Session) -> None:
        super().__init__()
        self._run = run
        self._presence = Presence()
        self._acts = False  # not with what waits for nobody
        self._list: Any = None
        self._train: Any = None  # the model's training function before this one
        self._batch: Any = None
        self._logs: Any = None
        self._next = 0
        self._over = False
        # In the last step: whether this process had no batch, and the first one that had.
        self._idle, self._leader = False, 0
        self._some_idle = False

    def set_model(self, model: Any) -> None:
        """Take the model, and remember Keras's list of callbacks."""
        super().set_model(model)
        self._list = list_of(self)

    def set_params(self, params: Any) -> None:
        # What looks at it later, such as the progress bar and a warm-up, sees the steps of all.
        """Take the parameters of fit, with the largest number of steps of all processes."""
        steps = tf.constant(params.get("steps") or math.inf, tf.float64)
        longest = float(operations.all_reduce(self._run, steps, "max", "steps in an epoch"))
        params["steps"] = None if math.isinf(longest) else int(longest)
        super().set_params(params)

    def on_train_begin(self, logs: Any = None) -> None:
        """Replace the model's training function. Raises UsageError if the model cannot train so."""
        model = self.model
        syncs = [sync_of(each) for each in distributed(model)]
        self._acts = all(sync.waits for sync in syncs)
        if not self._acts:
            return
        apart = next((type(sync).__name__ for sync in syncs if not averages_gradients(sync)), None)
        divided = any(map(part_of, model.variables))
        if apart or divided or not syncs:
            what = (
                f"{apart} trains processes apart" if apart else "the optimizer is not distributed"
            )
            what = "processes have parts of the model" if divided else what
            raise UsageError(
                f"callbacks(uneven=True): {what}. Use rt.sync.AllReduce() or rt.sync.Sharded() and a model "
                "that every process has, or give all processes as many batches: rt.shard(data)"
            )
        make = type(model).make_train_function

        def make_train_function(force: bool = False) -> Any:
            if force or model.train_function != self._steps:
                make(model, force)
                self._train, model.train_function = model.train_function, self._steps

        until_fit_ends(model, self._end)
        object.__setattr__(model, _PRESENCE, self._presence)
        object.__setattr__(model, "make_train_function", make_train_function)
        model.make_train_function(force=True)

    def _end(self) -> None:
        for name in (_PRESENCE, "make_train_function"):
            del self.model.__dict__[name]
        self.model.train_function = None  # Keras makes its own when fit begins
        self._acts, self._batch = False, None

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Begin to count the steps of an epoch."""
        self._next, self._over, self._some_idle = 0, False, False

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Note which step is next."""
        self._next = batch + 1

    def on_test_begin(self, logs: Any = None) -> None:
        """Take part in the steps that others still have, before validation."""
        self._join()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Take part in the steps that others still have."""
        self._join()

    def _join(self) -> None:
        """Take part in steps until nobody has a batch, or training stops."""
        model = self.model
        while self._acts and not self._over and not model.stop_training:
            begin = self._next
            self._list.on_train_batch_begin(begin)
            try:
                logs = model.train_function(iter(()))
            except StopIteration:
                return
            self._list.on_train_batch_end(begin + model.steps_per_execution - 1, logs)

    def _steps(self, iterator: Iterator[Any]) -> Any:
        """Do what a training function of Keras does, also without batches while others have some."""
        done = [
            True
            for _ in range(self.model.steps_per_execution)
            if not self._over and self._step(next(iterator, None))
        ]
        if not done:
            raise StopIteration
        return self._logs

    def _step(self, batch: Any) -> bool:
        """Train on a batch, or on none. Return whether any process had one."""
        self._idle = batch is None
        self._batch = self._batch if self._idle else batch
        mine = [not self._idle, 0 if self._idle else _rows_in(batch), self._batch is not None]
        found = operations.all_gather(
            self._run, tf.constant([mine], tf.float64), "who has a batch in this step"
        ).numpy()
        here, rows, can = found.T
        self._over = not here.any()
        if self._over:
            return False
        if not can.all():
            raise UsageError(
                f"callbacks(uneven=True): rank {int(can.argmin())} has no batch at all in the first epoch: "
                "each process needs one at least"
            )
        self._leader, self._some_idle = int(here.argmax()), not here.all()
        self._presence.set(not self._idle, here.sum(), rows.sum())
        before = [(each, tf.convert_to_tensor(each)) for each in self._gathered()]
        logs = self._train(iter([self._batch]))
        for variable, value in before:
            variable.assign(value)
        self._logs = self._logs if self._idle else logs
        return True

    def _gathered(self) -> list[Any]:
        """Return the variables that a step without a batch must not change."""
        if not self._idle:
            return []
        metrics = [variable for each in metrics_of(self.model) for variable in each.variables]
        return [*self.model.non_trainable_variables, *metrics]

    def saw(self, batch: Any) -> None:
        """Note a batch that was skipped."""
        self._batch = batch

    def catch_up(self, variables: Sequence[Any]) -> None:
        """Take what layers have gathered in a last step that had no batch here. All processes call it."""
        if not self._acts or not self._some_idle:
            return
        for each in differing(self._run, variables, "what layers have gathered"):
            name = f"{label(each)} of all steps"
            value = operations.broadcast(self._run, tf.convert_to_tensor(each), self._leader, name)
            if self._idle:
                each.assign(value)


def _rows_in(batch: Any) -> int:
    x, _, _ = keras.utils.unpack_x_y_sample_weight(batch)
    first = next(each for each in tf.nest.flatten(x) if each is not None)
    return count_of(first)
