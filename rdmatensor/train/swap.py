# SPDX-License-Identifier: Apache-2.0
"""Lets Keras's SwapEMAWeights swap the weights of a model whose optimizer is sharded."""

from __future__ import annotations

from typing import Any

import keras

from .backend.tensorflow import front
from .backend.tensorflow.optimizer import inside
from .sharding.optimizer import Sharded


def swap_whole(callback: Any) -> None:
    """Makes the callback, if it is a SwapEMAWeights, act on whole weights where averages are in strips."""
    if isinstance(callback, keras.callbacks.SwapEMAWeights):
        front.put(callback, _WholeSwap)


class _WholeSwap:
    """What is put in front of SwapEMAWeights, which swaps what the optimizer updates: strips."""

    model: Any

    def _swap_variables(self) -> None:
        optimizer = self.model.optimizer
        found = [each for each in (optimizer, *inside(optimizer)) if isinstance(each, Sharded)]
        for each in found:
            each.take_whole()
        super()._swap_variables()  # type: ignore[misc]
        for each in found:
            each.publish()
