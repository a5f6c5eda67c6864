# SPDX-License-Identifier: Apache-2.0
"""Weigh the losses of processes on PyTorch, for the reason that backend/tensorflow/weighing.py gives.

Steps run eagerly here, so numbers of rows and sums are Python's.
"""

from __future__ import annotations

from contextvars import ContextVar, Token
from functools import cache, wraps
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import torch

from .. import mixin

if TYPE_CHECKING:
    from ...run.session import Session

_active: ContextVar[Weighing | None] = ContextVar("weighing", default=None)


class Weighing:
    """Weigh, within the block, losses of Keras to this process's share of the loss of all.

    Every process has to compute the same losses in it, in the same order. `rows` are those of the batch here,
    and `tracker` is the metric in which Keras gathers the losses of batches, or None. It serves one step.
    """

    def __init__(self, run: Session, rows: int, tracker: Any) -> None:
        self._run, self._rows = run, float(rows)
        self._all_rows: Any = None
        self._token: Token[Weighing | None]
        if tracker is not None:
            mixin.add(tracker, _Shown)

    def __enter__(self) -> None:
        _wrap_keras()
        self._token = _active.set(self)

    def __exit__(self, *_: object) -> None:
        _active.reset(self._token)

    def share(self, loss: Any, values: Any, weights: Any, mask: Any, reduction: Any) -> Any:
        """Return the loss that was made of `values`, weighed."""
        size = self._run.size
        if reduction in (None, "none"):  # its gradient is that of the sum
            return loss + (size - 1) * (loss - loss.detach())
        if reduction == "sum" and values.ndim:
            return loss * size
        mine = self._rows
        if reduction == "mean_with_sample_weight" and not (weights is None and mask is None):
            mine = float(keras.ops.sum(_merged(weights, mask, values.dtype)))
        elif mask is not None:
            mine = float(keras.ops.sum(keras.ops.cast(mask, "float32")))
        elif values.ndim:  # else it is a loss of the program, which is taken for a mean of rows
            mine = float(values.numel())
        return _times(loss, mine * size, self._sum(mine))

    def shown(self, loss: Any) -> Any:
        """Return the loss for a mean to which each process adds as much as it has rows."""
        if self._all_rows is None:  # no loss needed them so far
            self._sum(self._rows)
        return _times(loss, self._all_rows, self._rows * self._run.size)

    def _sum(self, count: float) -> float:
        """Return the sum of a count over all processes. Sum up the rows, too."""
        run = self._run
        assert run.group is not None
        total = run.group.all_reduce(
            np.array([count, self._rows]), timeout=run.timeout, detail="what losses are divided by"
        )
        self._all_rows = float(total[1])
        return float(total[0])


class _Shown:
    """The class that lies in front of that of a model's loss tracker."""

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def update_state(self, values: Any, sample_weight: Any = None) -> Any:
        """Gather the loss of a batch."""
        weighing = _active.get()
        if weighing is not None:
            values = weighing.shown(values)
        return super().update_state(values, sample_weight)  # type: ignore[misc]


def _times(loss: Any, dividend: float, divisor: float) -> Any:
    if dividend == divisor:
        return loss
    return loss * (dividend / divisor if divisor else 0.0)


def _merged(weights: Any, mask: Any, dtype: Any) -> Any:
    """Return the weights that Keras makes of weights and a mask."""
    from keras.src.losses import loss

    dtype = keras.backend.standardize_dtype(dtype)
    weights, mask = (
        None if each is None else keras.ops.convert_to_tensor(each, dtype)
        for each in (weights, mask)
    )
    return loss.apply_mask(weights, mask, dtype=dtype, reduction="mean_with_sample_weight")


@cache
def _wrap_keras() -> None:
    """Let Keras's losses ask who weighs them, once. Without anyone they stay as they are."""
    from keras.src.losses import loss as module

    reduce, unscale = module.reduce_weighted_values, module.unscale_loss_for_distribution

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    @wraps(reduce)
    def reduced(
        values: Any,
        sample_weight: Any = None,
        mask: Any = None,
        reduction: str | None = "sum_over_batch_size",
        dtype: Any = None,
    ) -> Any:
        loss = reduce(values, sample_weight, mask, reduction, dtype)
        weighing = _active.get()
        if weighing is None:
            return loss
        return weighing.share(loss, values, sample_weight, mask, reduction)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    @wraps(unscale)
    def unscaled(value: Any) -> Any:
        weighing = _active.get()
        return unscale(value) if weighing is None else weighing.shown(unscale(value))

    module.reduce_weighted_values = reduced
    module.unscale_loss_for_distribution = unscaled
