# SPDX-License-Identifier: Apache-2.0
"""The part of the data that this process trains on."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from ..errors import UsageError
from .process import current


def shard(data: Any) -> Any:
    """This process's part of `data`. Every process gets equally much, so that all take the same number of
    steps.

    `data` is a tf.data.Dataset, of which this process takes every size-th element from the rank-th on
    (shard it before shuffle and batch, or shard batches); or an array, or a tuple, list or dict of arrays
    with equally many rows, of which it takes the rows in the same way: `model.fit(*shard((x, y)))`. What
    does not fill a round of all processes is left out.

    Raises UsageError for other data, and if there is less than one element for each process.
    """
    run = current()
    if isinstance(data, tf.data.Dataset):
        return _of_dataset(data, run.rank, run.size)
    arrays = tf.nest.flatten(data)
    counts = {len(each) if getattr(each, "shape", None) else -1 for each in arrays}
    if len(counts) != 1 or -1 in counts:
        raise UsageError(
            f"shard() takes a tf.data.Dataset or arrays with equally many rows, not {type(data).__name__} "
            f"with {sorted(counts)} rows: shard the data yourself, with as many steps for each process"
        )
    rows = _whole_rounds(counts.pop(), run.size)
    return tf.nest.map_structure(lambda each: each[run.rank : rows : run.size], data)


def _of_dataset(data: Any, rank: int, size: int) -> Any:
    count = int(data.cardinality())
    if count == tf.data.INFINITE_CARDINALITY:
        return data.shard(size, rank)
    if count != tf.data.UNKNOWN_CARDINALITY:
        return data.take(_whole_rounds(count, size)).shard(size, rank)

    # Nobody knows how many there are, so each element waits until its round is complete.
    def pick(*window: Any) -> Any:
        elements = window[0] if len(window) == 1 else window
        return tf.data.Dataset.zip(
            tf.nest.map_structure(lambda each: each.skip(rank).take(1), elements)
        )

    return data.window(size, drop_remainder=True).flat_map(pick)


def _whole_rounds(count: int, size: int) -> int:
    if count < size:
        raise UsageError(
            f"there are {count} elements for {size} processes: each needs at least one; shard before "
            "batching, or start fewer processes"
        )
    return count // size * size
