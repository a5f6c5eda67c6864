# SPDX-License-Identifier: Apache-2.0
"""The callback that has a model weigh its losses while it trains."""

from __future__ import annotations

from typing import Any

import keras

from . import operations
from .cut.strips import groups_of
from .optimizer import sync_of
from .optimizers import distributed
from .uneven import presence_of
from .weighing import Weighing


class Shares(keras.callbacks.Callback):  # type: ignore[misc]
    """Has losses weighed in the training steps of the model, also of later ones without callbacks."""

    def on_train_begin(self, logs: Any = None) -> None:
        model = self.model
        train_step = model.train_step
        if getattr(train_step, "weighs", False):
            return

        @operations.as_written
        def weighed(data: Any) -> Any:
            weighing = _weighing_of(model, data)
            if weighing is None:
                return train_step(data)
            with weighing:
                return train_step(data)

        vars(weighed)["weighs"] = True
        object.__setattr__(model, "train_step", weighed)
        model.make_train_function(force=True)


def _weighing_of(model: Any, data: Any) -> Weighing | None:
    """None if its optimizers do not average the gradients of each step over all processes."""
    optimizers = distributed(model)
    if not optimizers or not all(sync_of(each).averages for each in optimizers):
        return None
    groups = groups_of(model.trainable_variables)
    if groups is not None and groups.period > 1:
        return None
    x, _, _ = keras.utils.unpack_x_y_sample_weight(data)
    apart = bool(getattr(getattr(model, "_compile_loss", None), "metrics", None))
    return Weighing(optimizers[0]._rdmatensor_run, data, x, apart, presence_of(model))
