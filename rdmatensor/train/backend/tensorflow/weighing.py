# SPDX-License-Identifier: Apache-2.0
"""Weigh the losses of processes so that the mean of their gradients is that of all their examples together.

A loss of Keras is a sum divided by a number: that of its values, of those that a mask leaves, or the sum of
their weights. Where processes divide by different numbers, the mean of their losses is not the loss of all.
So each loss is multiplied by what its process divides by, over the mean of what all divide by. Keras itself
scales losses for tf.distribute, in the functions that are wrapped here.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar, Token
from functools import cache, wraps
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from . import operations

if TYPE_CHECKING:
    from ...run.session import Session

_active: ContextVar[Weighing | None] = ContextVar("weighing", default=None)


class Presence:
    """The processes that have a batch in a step, where some have fewer than others."""

    def __init__(self) -> None:
        # Steps that have been traced read it.
        with tf.init_scope(), tf.device("/CPU:0"):
            self._numbers = tf.Variable([1.0, 1.0, 1.0], dtype=tf.float64, trainable=False)

    def set(self, here: bool, processes: float, rows: float) -> None:
        """Say, before a step, whether this process has a batch, how many have one, and the rows of all."""
        self._numbers.assign([float(here), processes, rows])

    @property
    def here(self) -> Any:
        """1 if this process has a batch, else 0."""
        return self._numbers[0]

    @property
    def processes(self) -> Any:
        """The number of processes that have a batch."""
        return self._numbers[1]

    @property
    def rows(self) -> Any:
        """The number of rows in the batches of all processes."""
        return self._numbers[2]


class Weighing:
    """Weigh, within the block, losses of Keras to this process's share of the loss of all.

    Every process has to compute the same losses in it, in the same order. `data` is the batch, and `x` the
    part of it whose rows Keras counts, if they are known. `apart` says that Keras also shows the loss of each
    output. With `presence`, processes without a batch count nothing. It serves one step.
    """

    def __init__(
        self,
        run: Session,
        data: Any = None,
        x: Any = None,
        apart: bool = False,
        presence: Presence | None = None,
    ) -> None:
        self._run = run
        self.presence = presence
        self._leaves = [each for each in tf.nest.flatten(data) if each is not None]
        self._x = next((each for each in tf.nest.flatten(x) if each is not None), None)
        self._apart = apart
        self._tokens: list[Token[Weighing | None]] = []
        self._target: Any = None
        # The rows of this process and of all, and the graph in which they were counted.
        self._rows: tuple[Any, Any, Any] | None = None
        self._shares: list[Any] = []

    def __enter__(self) -> None:
        _wrap_keras()
        self._tokens.append(_active.set(self))

    def __exit__(self, *_: object) -> None:
        _active.reset(self._tokens.pop())

    def share(self, loss: Any, values: Any, weights: Any, mask: Any, reduction: str | None) -> Any:
        """Return the loss that was made of `values`, weighed."""
        self._shares.append(self._weighed(loss, values, weights, mask, reduction))
        return self._shares[-1]

    def _weighed(self, loss: Any, values: Any, weights: Any, mask: Any, reduction: Any) -> Any:
        size = self._size(loss.dtype)
        values = tf.convert_to_tensor(values)
        if reduction in (None, "none"):  # its gradient is that of the sum
            return loss + (size - 1) * (loss - tf.stop_gradient(loss))
        if reduction == "sum" and values.shape.rank != 0:
            return loss * size
        count = self._count(values, weights, mask, reduction)
        mine, total = self._of_rows() if count is None else self._summed(count)
        size = self._size(tf.float64)
        return loss * tf.cast(tf.math.divide_no_nan(mine * size, total), loss.dtype)

    def shown(self, loss: Any) -> Any:
        """Return the loss for a mean to which each process adds as much as it has rows."""
        # Keras adds the loss of one output once for a batch, if the size of the batch is not known.
        alone = self._apart and any(loss is each for each in self._shares)
        if self._x is None or (alone and self._x.shape[0] is None):
            return loss
        mine, total = self._of_rows()
        size = self._size(tf.float64)
        return loss * tf.cast(tf.math.divide_no_nan(total, mine * size), loss.dtype)

    def _size(self, dtype: Any) -> Any:
        """Return how many processes the mean of gradients is of."""
        if self.presence is None:
            return self._run.size
        return tf.cast(self.presence.processes, dtype)

    def _count(self, values: Any, weights: Any, mask: Any, reduction: str | None) -> Any:
        """Return what the loss was divided by, or something in proportion to it; None for the rows of `x`."""
        if reduction == "mean_with_sample_weight" and (weights is not None or mask is not None):
            return tf.reduce_sum(_numbers(_merged(weights, mask, values.dtype)))
        if mask is not None:
            return tf.reduce_sum(_numbers(mask))
        target = self._target
        if values.shape.rank == 0:  # a loss of the program, which is taken for a mean of rows
            ranked = target is not None and target.shape.rank
            return (
                None if self._x is not None else tf.shape(target)[0] if ranked else tf.constant(1)
            )
        # The rows of the target are known before the loss, so that others learn of them meanwhile.
        known = target is not None and bool(target.shape.rank) and _has_known_rows(target)
        if not known or not _has_known_rows(values):
            return tf.size(values)
        of_batch = self._x is not None and any(target is each for each in self._leaves)
        return None if of_batch else tf.shape(target)[0]

    def _of_rows(self) -> tuple[Any, Any]:
        if self.presence is not None:
            return _numbers(_rows_of(self._x)) * self.presence.here, self.presence.rows
        if self._rows is None or self._rows[2] is not _graph():
            self._summed(None)
        assert self._rows is not None
        return self._rows[:2]

    def _summed(self, count: Any) -> tuple[Any, Any]:
        """Return the count here, and its sum over all processes.

        The first operation also sums up the rows.
        """
        counts = [] if count is None else [count]
        rows_known = self.presence is not None or (self._rows and self._rows[2] is _graph())
        if self._x is not None and not rows_known:
            counts.append(_rows_of(self._x))
        mine = tf.stop_gradient(tf.stack([_numbers(each) for each in counts]))
        if self.presence is not None:
            mine *= self.presence.here
        started = operations.start(
            self._run.handle, "all_reduce", [mine], "what losses are divided by"
        )
        total = tf.stop_gradient(started.finish()[0])
        if count is None or len(counts) > 1:
            self._rows = mine[-1], total[-1], _graph()
        return mine[0], total[0]


def presence() -> Presence | None:
    """Return which processes have a batch in the step at hand; None if all have."""
    weighing = _active.get()
    return None if weighing is None else weighing.presence


@operations.no_autograph
def of_present(gradients: Sequence[Any], size: int) -> list[Any]:
    """Scale gradients so that their mean over all `size` processes is that over those with a batch."""
    found = presence()
    if found is None:
        return list(gradients)
    factor = found.here * size / found.processes
    return [each if each is None else _times(each, factor) for each in gradients]


def _times(gradient: Any, factor: Any) -> Any:
    if isinstance(gradient, tf.IndexedSlices):
        # Zeros would count as rows that the step has used.
        rows = tf.where(factor > 0, tf.shape(gradient.indices)[0], 0)
        values = _times(gradient.values[:rows], factor)
        return tf.IndexedSlices(values, gradient.indices[:rows], gradient.dense_shape)
    # What is computed without a batch may be no number.
    return tf.math.multiply_no_nan(gradient, tf.cast(factor, gradient.dtype))


def _graph() -> Any:
    return None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()


def _has_known_rows(tensor: Any) -> bool:
    return bool(tensor.shape[1:].is_fully_defined())


def _numbers(count: Any) -> Any:
    return tf.cast(count, tf.float64)


def _rows_of(data: Any) -> Any:
    if isinstance(data, tf.RaggedTensor):
        return data.nrows()
    return data.dense_shape[0] if isinstance(data, tf.SparseTensor) else tf.shape(data)[0]


def _merged(weights: Any, mask: Any, dtype: Any) -> Any:
    """Return the weights that Keras makes of weights and a mask."""
    from keras.src.losses import loss

    if mask is not None:
        mask = tf.convert_to_tensor(mask)
    return loss.apply_mask(weights, mask, dtype=dtype, reduction="mean_with_sample_weight")


@cache
def _wrap_keras() -> None:
    """Let Keras's losses ask who weighs them, once. Without anyone they stay as they are."""
    from keras.src.losses import loss as module

    call, reduce, unscale = (
        keras.losses.Loss.__call__,
        module.reduce_weighted_values,
        module.unscale_loss_for_distribution,
    )

    @wraps(call)
    def called(self: Any, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        weighing = _active.get()
        if weighing is not None:
            leaves = [each for each in tf.nest.flatten(y_true) if tf.is_tensor(each)]
            weighing._target = leaves[0] if leaves else None
        return call(self, y_true, y_pred, sample_weight)

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

    @wraps(unscale)
    def unscaled(value: Any) -> Any:
        weighing = _active.get()
        return unscale(value) if weighing is None else weighing.shown(unscale(value))

    keras.losses.Loss.__call__ = operations.no_autograph(called)
    module.reduce_weighted_values = operations.no_autograph(reduced)
    module.unscale_loss_for_distribution = operations.no_autograph(unscaled)
