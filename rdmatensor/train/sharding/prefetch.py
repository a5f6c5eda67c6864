# SPDX-License-Identifier: Apache-2.0
"""Let a training step begin before all new weights have arrived: each layer waits for its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from ..backend.tensorflow import operations
from .shards import Buckets, Strip


class Prefetch:
    """Unfinished gathers of weights, which one step starts and the next one ends.

    Between steps, variables have the weights of the step before. `settle` ends that, before anything else
    looks at them. All processes call `resume` and `settle` at the same places of the program.
    """

    def __init__(self, strips: Sequence[Strip], buckets: Buckets) -> None:
        self._strips, self.buckets = strips, buckets
        with tf.init_scope():
            self._pending = [tf.Variable(self._start(i)) for i in range(len(buckets))]
        self._settled = False
        self._own_step: Any = None

    def _start(self, number: int) -> Any:
        for i in self.buckets.members[number]:
            self._strips[i].refresh()
        return self.buckets.start_gather(number)

    def defer(self, number: int) -> None:
        """Start to gather a bucket."""
        self._pending[number].assign(self.buckets.start_gather(number))

    @operations.no_autograph
    def arrive(self) -> None:
        """Set all variables. In a function, what reads one of them waits for its bucket only."""
        for number, pending in enumerate(self._pending):
            self.buckets.finish_gather(number, pending.read_value())

    def settle(self) -> None:
        """Wait for all weights."""
        if not self._settled:
            self.arrive()
        self._settled = True

    def resume(self) -> None:
        """Start to gather again, before training steps. Weights may have changed since `settle`."""
        for number, pending in enumerate(self._pending):
            pending.assign(self._start(number))
        self._settled = False

    def begin(self, model: Any) -> None:
        """Let each step of a Keras model begin with `arrive`, until `end`."""
        step = model.train_step
        self._own_step = model.__dict__.get("train_step")

        @operations.no_autograph
        def train_step(*args: Any, **named: Any) -> Any:
            self.arrive()
            return step(*args, **named)

        vars(train_step)["weighs"] = getattr(step, "weighs", False)
        self._replace(model, train_step)

    def end(self, model: Any) -> None:
        """Wait for all weights, and give the model its own step back."""
        self.settle()
        self._replace(model, self._own_step)

    def _replace(self, model: Any, step: Any) -> None:
        model.__dict__.pop("train_step", None)
        if step is not None:
            object.__setattr__(model, "train_step", step)
        model.make_train_function(force=True)
