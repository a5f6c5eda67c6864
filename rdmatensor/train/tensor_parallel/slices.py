# SPDX-License-Identifier: Apache-2.0
"""Cut variables into strips, and join strips to the whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf

from ..backend.names import plain
from ..backend.tensorflow import operations
from ..backend.tensorflow.parts import mark, part_of
from ..sync.base import Array

if TYPE_CHECKING:
    from .groups import Groups

# Whole layers travel in slices of so many bytes, because groups keep the memory of their operations.
_SLICE = 4 << 20


def bounds(length: int, parts: int, index: int) -> tuple[int, int]:
    """Return where part `index` begins and ends.

    If parts are not equal, the first ones have one element more.
    """
    size, more = divmod(length, parts)
    start = index * size + min(index, more)
    return start, start + size + (index < more)


def widest(length: int, parts: int) -> int:
    """Return the size of the largest part."""
    return -(-length // parts)


@dataclass(frozen=True)
class Strip:
    """The part of a variable that this process has: along `axis`, one for each process of the group."""

    division: Groups
    shape: tuple[int, ...]
    axis: int
    name: str

    def of(self, whole: Any) -> Any:
        """Return this process's part of an array or tensor."""
        start, stop = bounds(self.shape[self.axis], self.division.size, self.division.place)
        return whole[(slice(None),) * self.axis + (slice(start, stop),)]

    def whole(self, variable: Any) -> Array | None:
        """Join the parts of rank 0's group there; elsewhere, return None.

        All of them call it.
        """
        inside, length = self.division.inside, self.shape[self.axis]
        if self.division.number != 0:
            return None
        width = widest(length, inside.size)
        # Parts travel with equal sizes, along the first dimension.
        part = np.moveaxis(np.asarray(tf.convert_to_tensor(variable)), self.axis, 0)
        padded = np.zeros((width, *part.shape[1:]), part.dtype)
        padded[: len(part)] = part
        wanted = self.division.run.rank == 0
        joined = np.empty((length, *part.shape[1:]) if wanted else 0, part.dtype)
        step = _rows(padded, inside.size)
        for first in range(0, width, step):
            rows = padded[first : first + step]
            found = operations.all_gather(inside, rows, f"strips of {plain(self.name)}").numpy()
            for index in range(inside.size if wanted else 0):
                start, stop = bounds(length, inside.size, index)
                place = joined[start:stop][first : first + step]
                place[:] = found[index * len(rows) :][: len(place)]
        return np.moveaxis(joined, 0, self.axis) if wanted else None

    def received(self, whole: Array | None, dtype: Any) -> Array:
        """Return this process's part of an array that rank 0 has; `whole` is None elsewhere.

        All processes call it.
        """
        run = self.division.run
        mine = np.empty(self.of(np.broadcast_to(np.zeros((), dtype), self.shape)).shape, dtype)
        start, stop = bounds(self.shape[self.axis], self.division.size, self.division.place)
        step = _rows(np.broadcast_to(mine.dtype.type(0), self.shape))
        for first in range(0, self.shape[0], step):
            last = min(first + step, self.shape[0])
            if whole is None:
                rows = np.zeros((last - first, *self.shape[1:]), dtype)
            else:
                rows = np.asarray(whole[first:last], dtype)
            what = f"{plain(self.name)} {self.shape} from {first}"
            found = operations.broadcast(run, rows, 0, what).numpy()
            if self.axis == 0:
                begin, end = max(start, first), min(stop, last)
                if begin < end:
                    mine[begin - start : end - start] = found[begin - first : end - first]
            else:
                mine[first:last] = self.of(found)
        return mine


def _rows(array: Array, parts: int = 1) -> int:
    """Return how many rows of an array travel at once if each of `parts` processes sends as many."""
    row = array.nbytes // max(len(array), 1) * parts
    return max(_SLICE // max(row, 1), 1)


def strip_of(variable: Any) -> Strip | None:
    """Return which part of a variable of the model or the optimizer this is; None if it is whole."""
    part = part_of(variable)
    return part if isinstance(part, Strip) else None


def groups_of(variables: Sequence[Any]) -> Groups | None:
    """Return the groups of the first variable that is cut; None if none is."""
    return next((s.division for s in map(strip_of, variables) if s is not None), None)


def cut(variable: Any, axis: int, groups: Groups) -> None:
    """Replace a variable of Keras by this process's part of rank 0's values. All processes call it."""
    strip = Strip(groups, tuple(variable.shape), axis, variable.path)
    dtype = variable.value.dtype.as_numpy_dtype
    whole = None
    if groups.run.rank == 0:
        whole = variable.value.numpy()
    else:  # the others need not keep their values until rank 0's are there
        with tf.init_scope():
            variable._initialize(tf.zeros([0], dtype))
    part = strip.received(whole, dtype)
    del whole
    with tf.init_scope():
        variable._initialize(tf.convert_to_tensor(part))
    variable._shape = tuple(variable._value.shape)
    if variable.regularizer is not None:
        variable.regularizer = _Times(variable.regularizer, groups.size)
    mark(variable, strip)


class _Times(keras.regularizers.Regularizer):  # type: ignore[misc]
    """The regularizer of a strip. The mean of its losses over processes is that of the whole variable."""

    def __init__(self, inner: Any, factor: int) -> None:
        self._inner, self._factor = inner, factor

    def __call__(self, x: Any) -> Any:
        return self._inner(x) * self._factor
