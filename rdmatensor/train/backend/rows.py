# SPDX-License-Identifier: Apache-2.0
"""Take rows of what Keras accepts as data: arrays of any kind, a program's batches, and iterators."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any
from zlib import crc32

import keras
import numpy as np

from ...errors import UsageError

# So many rows of an array tell whether it has the same order in all processes.
_SAMPLED = 16


def as_arrays(data: Any) -> Any:
    """Return the data with arrays in place of lists of numbers or strings, which fit() takes for inputs."""

    def convert(each: Any) -> Any:
        leaves = keras.tree.flatten(each)
        if not isinstance(each, list) or any(not np.isscalar(leaf) for leaf in leaves):
            return None
        return np.array(each)

    return keras.tree.traverse(convert, data)


def count_of(each: Any) -> int:
    """Return how many rows an array has; -1 if it is none."""
    tf = _tensorflow_of(each)
    if tf and isinstance(each, tf.RaggedTensor):
        return int(each.nrows())
    shape = getattr(each, "shape", None)
    return int(shape[0]) if shape is not None and len(shape) else -1


def rows_of(each: Any, rows: slice | Any) -> Any:
    """Return some rows of an array: a slice, or an array of their numbers, which ascend."""
    if each is None:
        return None
    tf = _tensorflow_of(each)
    if tf and isinstance(each, tf.SparseTensor):
        return _sparse_rows(tf, each, np.arange(count_of(each))[rows])
    if tf and not isinstance(rows, slice):
        return tf.gather(each, rows)
    if hasattr(each, "tocsr"):  # of SciPy, where not every format has rows
        return each.tocsr()[rows]
    return each.iloc[rows] if hasattr(each, "iloc") else each[rows]


def _tensorflow_of(each: Any) -> Any:
    """Return TensorFlow if this is a tensor of it, and else None. Keras may run without it."""
    return sys.modules["tensorflow"] if type(each).__module__.startswith("tensorflow.") else None


def _sparse_rows(tf: Any, each: Any, rows: Any) -> Any:
    places = np.full(count_of(each), -1)
    places[rows] = np.arange(len(rows))
    indices = each.indices.numpy()
    found = places[indices[:, 0]]
    kept = np.flatnonzero(found >= 0)
    indices = np.concatenate([found[kept, None], indices[kept, 1:]], 1)
    shape = [len(rows), *each.dense_shape.numpy()[1:]]
    return tf.SparseTensor(indices, tf.gather(each.values, kept), shape)


def marks_of(arrays: list[Any]) -> Any:
    """Return numbers for some of the rows, which tell whether processes have them in the same order.

    Last bits that differ between machines change them little.
    """
    found = np.zeros(_SAMPLED)
    for number, each in enumerate(arrays, 1):
        if count_of(each) < 1:
            continue
        places = np.linspace(0, count_of(each) - 1, _SAMPLED).astype(int)
        unique, back = np.unique(places, return_inverse=True)
        values = [_mark(row) for row in _dense(rows_of(each, unique))]
        found += number * np.array(values)[back]
    return found


def _dense(rows: Any) -> Any:
    tf = _tensorflow_of(rows)
    if tf and isinstance(rows, tf.SparseTensor):
        return tf.sparse.to_dense(rows).numpy()
    if tf and isinstance(rows, tf.RaggedTensor):
        return [np.array(row, dtype=object) for row in rows.to_list()]
    return rows.toarray() if hasattr(rows, "toarray") else np.asarray(rows)


def _mark(row: Any) -> float:
    row = np.asarray(row)
    if row.dtype.kind in "biuf":
        flat = np.nan_to_num(row.astype(np.float64).ravel(), posinf=1.0, neginf=-1.0)
        return float(flat @ np.cos(np.arange(len(flat))))
    words = [each.decode() if isinstance(each, bytes) else str(each) for each in np.ravel(row)]
    # Files may lie in other folders on other hosts.
    return crc32(repr([word.rpartition("/")[2] for word in words]).encode()) / 2**32


def rounds(count: int, size: int, remainder: bool = False) -> int:
    """Return how many elements the processes take together.

    Raises UsageError if that is less than one each.
    """
    if count < size:
        raise UsageError(
            f"there are {count} elements for {size} processes: each needs at least one; shard before "
            "batching, or start fewer processes"
        )
    return count if remainder else count // size * size


class Batches(keras.utils.PyDataset):  # type: ignore[misc]
    """The batches of a PyDataset with the numbers rank, rank + size, rank + 2 size, ..."""

    def __init__(self, data: Any, rank: int, size: int, count: int | None, seed: int) -> None:
        super().__init__(
            workers=data.workers,
            use_multiprocessing=data.use_multiprocessing,
            max_queue_size=data.max_queue_size,
        )
        self._data, self._rank, self._size, self._count, self._seed = data, rank, size, count, seed

    @property
    def num_batches(self) -> int | None:
        """The number of batches of this process; None if the data has no end."""
        return self._count

    def __len__(self) -> int:
        assert self._count is not None
        return self._count

    def __getitem__(self, index: int) -> Any:
        return self._data[index * self._size + self._rank]

    def on_epoch_begin(self) -> None:
        """Begin an epoch of the data, with the same random numbers in all processes."""
        with _same_numbers(self._seed):
            self._data.on_epoch_begin()

    def on_epoch_end(self) -> None:
        """End an epoch of the data, with the same random numbers in all processes."""
        self._seed += 1
        with _same_numbers(self._seed):
            self._data.on_epoch_end()


@contextmanager
def _same_numbers(seed: int) -> Iterator[None]:
    """Make numpy's and Python's random numbers, within the block, the same in all processes.

    Programs shuffle their rows there, of which each process takes some.
    """
    kept = random.getstate(), np.random.get_state()
    random.seed(seed)
    np.random.seed(seed % 2**32)
    try:
        yield
    finally:
        random.setstate(kept[0])
        np.random.set_state(kept[1])


def every(data: Iterator[Any], rank: int, size: int, remainder: bool) -> Iterator[Any]:
    """Yield every size-th element, from the rank-th on; without `remainder`, of complete rounds only."""
    while True:
        count, mine = 0, None
        for count, each in enumerate(islice(data, size), 1):
            if count == rank + 1:
                mine = each
        if count == size or (remainder and count > rank):
            yield mine
        if count < size:
            return
