# SPDX-License-Identifier: Apache-2.0
"""Let models weigh their losses in each step."""

from __future__ import annotations

from functools import cache, wraps
from typing import Any

import keras
import tensorflow as tf

from ..backend.tensorflow import operations
from ..backend.tensorflow.optimizer import averages_gradients, sync_of
from ..backend.tensorflow.parts import division_of
from ..backend.tensorflow.weighing import Weighing
from .optimizers import distributed
from .uneven import presence_of


@cache
def weigh_steps() -> None:
    """Weigh losses in all training functions that Keras makes from now on, also for train_on_batch."""
    make = keras.Model.make_train_function

    @wraps(make)
    def made(model: Any, force: bool = False) -> Any:
        if (force or model.train_function is None) and distributed(model):
            _weigh(model)
        return make(model, force)

    keras.Model.make_train_function = made


def _weigh(model: Any) -> None:
    train_step = model.train_step
    if getattr(train_step, "weighs", False):
        return

    @operations.no_autograph
    def weighed(data: Any) -> Any:
        weighing = _weighing_of(model, data)
        if weighing is None:
            return train_step(data)
        with weighing:
            return train_step(data if weighing.presence is None else _of_any_rows(data))

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
