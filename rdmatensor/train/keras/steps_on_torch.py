# SPDX-License-Identifier: Apache-2.0
"""Prepare the training steps of models on PyTorch: losses are weighed."""

from __future__ import annotations

from functools import cache, wraps
from typing import Any

import keras
import torch

from ..backend.distributed import averages_gradients
from ..backend.interim import trainer_with
from ..backend.optimizers import sync_of
from ..backend.torch.weighing import Weighing
from .optimizers import distributed


@cache
def prepare_steps() -> None:
    """Prepare all training functions that Keras makes from now on, also for train_on_batch."""
    trainer = trainer_with("make_train_function")
    make: Any = vars(trainer)["make_train_function"]

    @wraps(make)
    def made(model: Any, force: bool = False) -> Any:
        if (force or model.train_function is None) and distributed(model):
            _weigh(model)
        return make(model, force)

    trainer.make_train_function = made  # type: ignore[attr-defined]


def weighs(model: Any) -> bool:
    """Return whether a step's losses are weighed: the gradients of each step are averaged."""
    optimizers = distributed(model)
    return bool(optimizers) and all(averages_gradients(sync_of(each)) for each in optimizers)


def _weigh(model: Any) -> None:
    train_step = model.train_step
    if getattr(train_step, "weighs", False):
        return

    @torch.compiler.disable(recursive=False)  # type: ignore[untyped-decorator]
    def weighed(data: Any) -> Any:
        x, _, _ = keras.utils.unpack_x_y_sample_weight(data)
        leaves = [each for each in keras.tree.flatten(x) if each is not None]
        if not leaves or not weighs(model):
            return train_step(data)
        run = distributed(model)[0]._rdmatensor_run
        with Weighing(run, leaves[0].shape[0], getattr(model, "_loss_tracker", None)):
            return train_step(data)

    vars(weighed)["weighs"] = True
    object.__setattr__(model, "train_step", weighed)
