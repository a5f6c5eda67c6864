# SPDX-License-Identifier: Apache-2.0
"""Cut variables into strips, and join strips to the whole."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf

from ...errors import UsageError
from ..backend.tensorflow import operations
from ..backend.tensorflow.names import plain
from ..backend.tensorflow.parts import Part, mark, part_of
from ..sync.base import Array

if TYPE_CHECKING:
    from .groups import Groups

# What a callback of rank 0 does, which the others follow.
DONE, FAILED, SAVE, LOAD = range(4)
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
class Strip(Part):
    """The part of a variable that this process has: along `axis`, one for each process of the group."""

    division: Groups
    shape: tuple[int, ...]
    axis: int
    name: str

    def of(self, whole: Any) -> Any:
        """Return this process's part of an array or tensor."""
        start, stop = bounds(self.shape[self.axis], self.division.size, self.division.place)
        return whole[(slice(None),) * self.axis + (slice(start, stop),)]

    def whole(self, variable: Any) -> Array:
        """Join the parts of all processes of the group, in rank 0; elsewhere, return no rows.

        All of them call it.
        """
        inside, length = self.division.inside, self.shape[self.axis]
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
        return np.moveaxis(joined, 0, self.axis) if wanted else joined

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


@contextmanager
def gathered(groups: Groups, variables: Sequence[Any]) -> Iterator[None]:
    """Let rank 0 save whole variables within the block. All processes call it with the same variables."""
    if groups.leads:
        groups.tell(SAVE)
    found: dict[int, Array] = {}
    for each in variables:
        strip = strip_of(each)
        if strip is not None and groups.number == 0:
            whole = strip.whole(each)
            if groups.run.rank == 0:
                found[id(each)] = whole
    groups.wholes = found
    try:
        yield
    finally:
        groups.wholes = None
        found.clear()
        operations.trim()


def to_save(variable: Any) -> Any:
    """Return the whole variable, inside `gathered`. Raises UsageError elsewhere, if it is cut."""
    strip = strip_of(variable)
    if strip is None:
        return np.asarray(tf.convert_to_tensor(variable))
    wholes = strip.division.wholes
    if wholes is None or id(variable) not in wholes:
        raise UsageError(
            f"{strip.name} is cut: save the whole model by its own save() or save_weights(), in all "
            "processes"
        )
    return wholes[id(variable)]


def take(variable: Any, whole: Any) -> None:
    """Set a variable to its part of the whole. Raises UsageError if the file's has another shape."""
    strip = strip_of(variable)
    if strip is None:
        variable.assign(whole)
        return
    whole = np.asarray(whole)
    if whole.shape != strip.shape:
        raise UsageError(f"{strip.name} has the shape {strip.shape}, the file's {whole.shape}")
    if strip.division.wholes is not None:
        strip.division.wholes[id(variable)] = whole  # others have no file
    variable.assign(strip.of(whole))


def spread(groups: Groups, variables: Sequence[Any]) -> None:
    """Set strips to their parts of what rank 0 has loaded. All processes call it."""
    wholes = groups.wholes or {}
    for each in variables:
        strip = strip_of(each)
        if strip is None:
            continue
        dtype = tf.as_dtype(each.dtype).as_numpy_dtype
        whole = wholes.get(id(each)) if groups.run.rank == 0 else None
        if whole is None and groups.run.rank == 0:
            whole = np.zeros(strip.shape, dtype)  # the file has none
        each.assign(strip.received(whole, dtype))
        wholes.pop(id(each), None)
