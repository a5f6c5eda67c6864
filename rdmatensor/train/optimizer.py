# SPDX-License-Identifier: Apache-2.0
"""Makes a Keras optimizer, or a gradient tape, use the gradients of all processes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from ..errors import UsageError
from .exchange import Exchange
from .gradients import AllReduce, mean
from .process import Run, current
from .sync.base import Synchronizer


class Distributed:
    """What `distribute` puts in front of the class of an optimizer."""

    _rdmatensor_run: Run
    _rdmatensor_sync: Synchronizer
    _rdmatensor_exchange: Exchange | None

    def apply(self, grads: Sequence[Any], trainable_variables: Any = None) -> Any:
        optimizer: Any = self
        exchange = self._rdmatensor_exchange
        if optimizer.gradient_accumulation_steps is None:
            grads = self._rdmatensor_reduce(grads)
        if exchange is None:
            return super().apply(grads, trainable_variables)  # type: ignore[misc]
        if trainable_variables is not None:
            trainable_variables = list(trainable_variables)
        exchange.before(trainable_variables or optimizer._trainable_variables)
        result = super().apply(grads, trainable_variables)  # type: ignore[misc]
        # Steps that only accumulate, or that a loss scale skips, do not count.
        inner = getattr(optimizer, "inner_optimizer", optimizer)
        exchange.after(
            trainable_variables or optimizer._trainable_variables,
            inner.iterations,
            inner.learning_rate,
        )
        return result

    def _clip_gradients(self, grads: Sequence[Any]) -> Any:
        # With accumulation, Keras comes here in the steps that update the model, and only those communicate.
        optimizer: Any = self
        if optimizer.gradient_accumulation_steps is not None:
            grads = self._rdmatensor_reduce(grads)
        return super()._clip_gradients(grads)  # type: ignore[misc]

    def _rdmatensor_reduce(self, grads: Sequence[Any]) -> list[Any]:
        optimizer: Any = self
        return self._rdmatensor_sync.gradients(self._rdmatensor_run, list(grads), optimizer.name)


def distribute(optimizer: Any, sync: Synchronizer | None = None) -> Any:
    """Makes a Keras optimizer train one model in all processes, as `sync` says. Returns it.

    By default (AllReduce) it applies the mean of the gradients of all processes.

    The optimizer keeps its class's name, its state and its settings, so a model that is saved with it loads
    where rdmatensor is not installed. Clipping, weight decay, moving averages and gradient accumulation see
    the mean. With the policy "mixed_float16" the optimizer is wrapped into Keras's LossScaleOptimizer here,
    as compile() would do it, so that all processes skip the same steps.

    Raises UsageError if init() was not called, if it is no Keras 3 optimizer, or if it is distributed
    already.
    """
    run = current()
    if isinstance(optimizer, str):
        optimizer = keras.optimizers.get(optimizer)
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise UsageError(
            f"{optimizer!r} is no optimizer of Keras {keras.__version__}: distribute() takes a "
            "keras.optimizers.Optimizer or its name"
        )
    if keras.backend.backend() != "tensorflow":
        raise UsageError(
            f"Keras runs on {keras.backend.backend()}: set KERAS_BACKEND=tensorflow, because the operations "
            "are TensorFlow's"
        )
    if _is_distributed(optimizer):
        raise UsageError(f"{optimizer.name} is distributed already: call distribute() once for it")
    scales = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
    if not scales and keras.config.dtype_policy().name == "mixed_float16":
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer, name="loss_scale_optimizer")
    if run.size > 1:
        put_in_front(optimizer, run, sync or AllReduce())
    return optimizer


def put_in_front(optimizer: Any, run: Run, sync: Synchronizer) -> None:
    """Gives the object a class that communicates, with the name and module of its own."""
    own = type(optimizer)
    names = {"__module__": own.__module__, "__qualname__": own.__qualname__, "__doc__": own.__doc__}
    # Keras tracks what is assigned to an optimizer.
    for name, value in (
        ("_rdmatensor_run", run),
        ("_rdmatensor_sync", sync),
        ("_rdmatensor_exchange", Exchange(run, sync) if sync.exchanges else None),
        ("__class__", type(own.__name__, (Distributed, own), names)),
    ):
        object.__setattr__(optimizer, name, value)


def _is_distributed(optimizer: Any) -> bool:
    inner = getattr(optimizer, "inner_optimizer", None)
    return isinstance(optimizer, Distributed) or isinstance(inner, Distributed)


def exchange_of(optimizer: Any) -> Exchange | None:
    """What exchanges parameters for this optimizer, if anything does."""
    return getattr(optimizer, "_rdmatensor_exchange", None)


def sync_of(optimizer: Any) -> Synchronizer:
    """How this optimizer is synchronized. One that is not distributed has the defaults."""
    return getattr(optimizer, "_rdmatensor_sync", None) or Synchronizer()


def move_outwards(optimizer: Any) -> None:
    """Corrects an optimizer that compile() wrapped after distribute().

    A model with a policy of its own is wrapped there. Whether a step is skipped would be decided before the
    gradients are averaged, by each process for itself.
    """
    inner = getattr(optimizer, "inner_optimizer", None)
    if isinstance(optimizer, Distributed) or not isinstance(inner, Distributed):
        return
    run, sync = inner._rdmatensor_run, inner._rdmatensor_sync
    object.__setattr__(inner, "__class__", type(inner).__mro__[2])
    put_in_front(optimizer, run, sync)


class GradientTape(tf.GradientTape):  # type: ignore[misc]
    """tf.GradientTape whose `gradient` returns the mean over all processes, for training loops of your own.

    Every process asks for gradients of the same variables, in the same order. Use a plain optimizer with it.
    """

    def __init__(
        self,
        persistent: bool = False,
        watch_accessed_variables: bool = True,
        sync: AllReduce | None = None,
    ) -> None:
        super().__init__(persistent, watch_accessed_variables)
        self._rdmatensor = current(), sync or AllReduce()

    def gradient(self, target: Any, sources: Any, *more: Any, **named: Any) -> Any:
        gradients = super().gradient(target, sources, *more, **named)
        run, sync = self._rdmatensor
        return tf.nest.pack_sequence_as(
            gradients,
            mean(run, tf.nest.flatten(gradients), sync, "a tape"),
            expand_composites=False,
        )
