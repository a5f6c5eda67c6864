# SPDX-License-Identifier: Apache-2.0
"""Let Keras's SwapEMAWeights act on whole weights."""

from __future__ import annotations

from typing import Any

import keras

from ..backend import mixin
from ..backend.distributed import hooks_of
from ..backend.optimizers import sync_of


def swap_whole(callback: Any) -> None:
    """Let SwapEMAWeights act on whole weights where averages are in strips.

    Other callbacks stay as they are.
    """
    if isinstance(callback, keras.callbacks.SwapEMAWeights):
        mixin.add(callback, _WholeSwap)


class _WholeSwap:
    """The class that lies in front of SwapEMAWeights, which would swap what the optimizer updates: strips."""

    model: Any

    def _swap_variables(self) -> None:
        optimizer = self.model.optimizer
        with hooks_of(sync_of(optimizer)).changed(optimizer):
            super()._swap_variables()  # type: ignore[misc]
