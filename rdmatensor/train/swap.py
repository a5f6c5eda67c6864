# SPDX-License-Identifier: Apache-2.0
"""Lets Keras's SwapEMAWeights swap the weights of a model whose optimizer is sharded."""

from __future__ import annotations

from typing import Any

import keras

from .backend.tensorflow import mixin
from .backend.tensorflow.optimizer import hooks_of, sync_of


def swap_whole(callback: Any) -> None:
    """Makes the callback, if it is a SwapEMAWeights, act on whole weights where averages are in strips."""
    if isinstance(callback, keras.callbacks.SwapEMAWeights):
        mixin.add(callback, _WholeSwap)


class _WholeSwap:
    """What is put in front of SwapEMAWeights, which swaps what the optimizer updates: strips."""

    model: Any

    def _swap_variables(self) -> None:
        optimizer = self.model.optimizer
        with hooks_of(sync_of(optimizer)).changed(optimizer):
            super()._swap_variables()  # type: ignore[misc]
