# SPDX-License-Identifier: Apache-2.0
"""Prepare the training steps of models: losses are weighed, and XLA compiles what does not communicate."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache, wraps
from typing import Any

import keras
import tensorflow as tf

from ..backend.distributed import averages_gradients
from ..backend.interim import trainer_with
from ..backend.optimizers import sync_of
from ..backend.tensorflow import operations
from ..backend.tensorflow.parts import division_of
from ..backend.tensorflow.weighing import Weighing
from .optimizers import distributed
from .uneven import presence_of


@cache
def prepare_steps() -> None:
    """Prepare all training functions that Keras makes from now on, also for train_on_batch."""
    trainer = trainer_with("make_train_function")
    make: Any = vars(trainer)["make_train_function"]

    @wraps(make)
    def made(model: Any, force: bool = False) -> Any:
        if not (force or model.train_function is None) or not distributed(model):
            return make(model, force)
        _weigh(model)
        with _not_compiled_as_a_whole(model):
            return make(model, force)

    trainer.make_train_function = made  # type: ignore[attr-defined]


@contextmanager
def _not_compiled_as_a_whole(model: Any) -> Iterator[None]:
    compiles = model.jit_compile
    model.jit_compile = False
    try:
        yield
    finally:
        model.jit_compile = compiles


def _compiled_in_parts(model: Any) -> AbstractContextManager[Any]:
    """Let XLA compile what the block traces, if the model is to be compiled.

    XLA forms clusters of the operations that it knows. Operations between processes stay outside.
    """
    compiles = model.jit_compile and not tf.executing_eagerly()
    return tf.xla.experimental.jit_scope() if compiles else nullcontext()


def _weigh(model: Any) -> None:
    train_step = model.train_step
    if getattr(train_step, "weighs", False):
        return

    @operations.no_autograph
    def weighed(data: Any) -> Any:
        weighing = _weighing_of(model, data)
        if weighing is not None and weighing.presence is not None:
            data = _of_any_rows(data)
        with _compiled_in_parts(model), weighing or nullcontext():
            return train_step(data)

    vars(weighed)["weighs"] = True
    object.__setattr__(model, "train_step", weighed)


def _of_any_rows(data: Any) -> Any:
    """Hide the number of rows of a batch from a step that is traced, as a data set does.

    Where it is known, Keras counts the loss of one output otherwise.
    """

    def hide(each: Any) -> Any:
        if tf.executing_eagerly() or not isinstance(each, tf.Tensor) or not each.shape.rank:
            return each
        return tf.compat.v1.placeholder_with_default(each, [None, *each.shape[1:]])

    return tf.nest.map_structure(hide, data)


def _weighing_of(model: Any, data: Any) -> Weighing | None:
    """Return the Weighing of a step; None if optimizers do not average the gradients of each step."""
    optimizers = distributed(model)
    if not optimizers or not all(averages_gradients(sync_of(each)) for each in optimizers):
        return None
    if division_of(model.trainable_variables).period > 1:
        return None
    x, _, _ = keras.utils.unpack_x_y_sample_weight(data)
    apart = bool(getattr(getattr(model, "_compile_loss", None), "metrics", None))
    return Weighing(optimizers[0]._rdmatensor_run, data, x, apart, presence_of(model))
