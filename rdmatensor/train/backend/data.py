# SPDX-License-Identifier: Apache-2.0
"""Give each process its part of the data."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from typing import Any
from zlib import crc32

import keras
import numpy as np

from ...errors import UsageError
from ..run.session import Session, current
from .base import backend
from .rows import Batches, as_arrays, count_of, every, marks_of, rounds, rows_of


def shard(data: Any, remainder: bool = False) -> Any:
    """Return this process's part of `data`. All get equally much, so that they take equally many steps.

    `data` is a tf.data.Dataset, of which this process takes every size-th element from the rank-th on (shard
    it before shuffle and batch, or shard batches); a keras.utils.PyDataset or an iterator, of whose batches
    it takes as many; or an array, or a tuple, list or dict of arrays with equally many rows, of which it
    takes the rows in the same way: `model.fit(*shard((x, y)))`. Arrays are those of numpy, TensorFlow (ragged
    and sparse, too), SciPy and pandas, and lists of numbers; None stays None. What does not fill a round of
    all processes is left out, unless `remainder` is true: then some processes get one element more, which
    suits `evaluate`, validation, and training with callbacks(uneven=True).

    All processes call it, with the same data in the same order, which they compare as far as they can see it:
    rows of arrays, seeds of shuffles. Raises UsageError for other data, if the order is not the same in all
    processes, and if there is less than one element for each process.
    """
    run = current()
    if is_dataset(data):
        from .tensorflow.datasets import shard_dataset

        agree(run, data)
        return shard_dataset(data, run.rank, run.size, remainder)
    if isinstance(data, keras.utils.PyDataset):
        return _of_batches(run, data, remainder)
    if isinstance(data, Iterator):
        return every(data, run.rank, run.size, remainder)
    data, count = arrays_of(data)
    agree(run, data)
    rows = slice(run.rank, rounds(count, run.size, remainder), run.size)
    return keras.tree.map_structure(lambda each: rows_of(each, rows), data)


def arrays_of(data: Any) -> tuple[Any, int]:
    """Return the arrays in `data`, and how many rows each has.

    Raises UsageError if there are none, or they differ.
    """
    kinds = [each.__module__ for each in type(data).__mro__]
    if any(each.startswith("torch.utils.data") for each in kinds):
        raise UsageError(
            "shard() cannot divide a loader of torch, whose sampler has its own order: give it "
            "sampler=DistributedSampler(dataset, rt.size(), rt.rank(), drop_last=True), and no shard()"
        )
    data = as_arrays(data)
    counts = {count_of(each) for each in keras.tree.flatten(data) if each is not None}
    if len(counts) != 1 or -1 in counts:
        raise UsageError(
            "shard() takes a tf.data.Dataset, a keras.utils.PyDataset, an iterator, or arrays with equally "
            f"many rows, not {type(data).__name__} with {sorted(counts)} rows: shard the data yourself, "
            "with as many steps for each process"
        )
    return data, counts.pop()


def is_dataset(data: Any) -> bool:
    """Return whether this is a tf.data.Dataset."""
    tf = sys.modules.get("tensorflow")
    return tf is not None and isinstance(data, tf.data.Dataset)


def agree(run: Session, data: Any) -> None:
    """Raise UsageError in all processes if they have different data, or another order of it.

    `data` is a tf.data.Dataset or a structure of arrays. All processes call it.
    """
    if run.size == 1 or run.returns:
        return
    why_not: str | None = None
    if is_dataset(data):
        from .tensorflow.order import Order

        order = Order(data)
        arrays = [each for each in order.sources if count_of(each) >= 0]
        why_not = order.why_not
        kind: list[Any] = [str(data.element_spec), int(data.cardinality()), *order.seeds, why_not]
    else:
        arrays = [each for each in keras.tree.flatten(data) if each is not None]
        kind = [(count_of(each), str(getattr(each, "dtype", ""))) for each in arrays]
    mine = np.array([[crc32(repr(kind).encode()), *marks_of(arrays)]], np.float64)
    found = backend().all_gather(run, mine, "the data that shard() gets")
    # A machine may have computed other last bits.
    scale = np.abs(found[:, 1:]).max() * 1e-3
    others = [
        rank
        for rank, each in enumerate(found)
        if each[0] != found[0, 0] or not np.allclose(each[1:], found[0, 1:], 1e-3, scale)
    ]
    if others:
        raise UsageError(
            f"shard() got other data, or another order or seed, in ranks {others} than in rank 0, so that "
            "rows would repeat and others be missed: load and shuffle alike in all processes (one seed, "
            "sorted file names), or divide the data yourself"
        )
    if why_not:
        raise UsageError(why_not)


def _of_batches(run: Session, data: Any, remainder: bool) -> Any:
    count = data.num_batches
    if count is not None:
        count = (rounds(count, run.size, remainder) - run.rank + run.size - 1) // run.size
    seed = random.getrandbits(31)
    if run.size > 1 and not run.returns:
        seed = int(
            backend().broadcast(run, np.array([seed], np.int64), 0, "the seed of batches")[0]
        )
    return Batches(data, run.rank, run.size, count, seed)
