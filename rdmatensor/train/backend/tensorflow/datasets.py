# SPDX-License-Identifier: Apache-2.0
"""Give each process its part of a tf.data.Dataset."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from ..rows import rounds


def shard_dataset(data: Any, rank: int, size: int, remainder: bool) -> Any:
    """Return the part of a dataset that process `rank` of `size` has; see rdmatensor.train.shard."""
    count = int(data.cardinality())
    if remainder or count == tf.data.INFINITE_CARDINALITY:
        return data.shard(size, rank)
    if count != tf.data.UNKNOWN_CARDINALITY:
        return data.take(rounds(count, size)).shard(size, rank)

    # Nobody knows how many there are, so each element waits until its round is complete.
    def pick(*window: Any) -> Any:
        elements = window[0] if len(window) == 1 else window
        return tf.data.Dataset.zip(
            tf.nest.map_structure(lambda each: each.skip(rank).take(1), elements)
        )

    return data.window(size, drop_remainder=True).flat_map(pick)
