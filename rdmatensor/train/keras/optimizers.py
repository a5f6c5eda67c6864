# SPDX-License-Identifier: Apache-2.0
"""Find all optimizers of a model: a GAN has two, and one may be made of several."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras

from ...errors import UsageError
from ..backend.distributed import Communicating, OptimizerHooks, move_outwards
from ..backend.optimizers import inside, leaves_of, sync_of


def distributed(model: Any) -> list[Any]:
    """Return the optimizers of a model that distribute() was called for, in the same order in all processes.

    They are `model.optimizer` and what attributes of the model and its layers have, also in lists and
    dictionaries, and inside others. One around a distributed one takes its place.
    """
    for each in _roots(model):
        move_outwards(each)
    found = (each for root in _roots(model) for each in _outermost(root))
    return list(dict.fromkeys(found))


def left_out(model: Any) -> list[Any]:
    """Return the optimizers that distribute() was not called for, but the one of compile() without arguments.

    That one is there, and unused, if others are distributed.
    """
    others = [each for each in _roots(model) if not any(_outermost(each))]
    unused = getattr(model, "optimizer", None) if distributed(model) else None
    return [each for each in others if each is not unused]


def leaves(model: Any) -> list[Any]:
    """Return the optimizers that have a learning rate: those that are distributed, or else the model's."""
    found = distributed(model) or [getattr(model, "optimizer", None)]
    return [leaf for each in found if each is not None for leaf in leaves_of(each)]


def averages(optimizer: Any) -> list[Any]:
    """Return the moving averages of parameters that an optimizer keeps."""
    kept: list[Any] = []
    for each in leaves_of(optimizer):
        if each.built and each.use_ema:
            kept += each._model_variables_moving_average
    return kept


def _roots(model: Any) -> list[Any]:
    found = dict.fromkeys(_optimizers_in(getattr(model, "optimizer", None)))
    for layer in model._flatten_layers():
        for value in vars(layer).values():
            found.update(dict.fromkeys(_optimizers_in(value)))
    return list(found)


def _optimizers_in(value: Any, depth: int = 3) -> Iterator[Any]:
    if isinstance(value, keras.optimizers.Optimizer):
        yield value
    elif depth and isinstance(value, (list, tuple, dict)):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _optimizers_in(each, depth - 1)


def _outermost(optimizer: Any) -> Iterator[Any]:
    if isinstance(optimizer, Communicating):
        yield optimizer
        return
    for found in (each for inner in inside(optimizer) for each in _outermost(inner)):
        sync = sync_of(found)
        if hasattr(optimizer, "optimizers") and isinstance(sync, OptimizerHooks):
            raise UsageError(
                f"{type(sync).__name__} and {type(optimizer).__name__}: the state would be saved in strips: "
                "use rt.sync.AllReduce()"
            )
        yield found
