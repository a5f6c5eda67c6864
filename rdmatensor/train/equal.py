# SPDX-License-Identifier: Apache-2.0
"""Copies variables of one process to all others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from zlib import crc32

import numpy as np
import tensorflow as tf

from . import operations
from .cut.strips import groups_of, strip_of
from .gradients import buckets_of
from .process import Run
from .seeds import is_seed
from .tables.placement import is_owned

# Smaller variables are broadcast together, up to so many bytes.
_AT_ONCE = 8 << 20


def broadcast_variables(run: Run, variables: Sequence[Any], root: int, name: str) -> None:
    """Sets variables to their values in `root`. Their order, types and shapes are the same everywhere.

    Seeds stay as they are, because they differ on purpose: processes drop out different units.
    Strips of a split model come from the process of root's group that has the same one.
    """
    if run.size == 1:
        return
    variables = [each for each in variables if not is_seed(each)]
    groups = groups_of(variables)
    if groups is not None:
        strips = [each for each in variables if strip_of(each) is not None]
        variables = [each for each in variables if strip_of(each) is None]
        _broadcast(groups.across, strips, root // groups.size, f"strips of {name}")
    _broadcast(run, variables, root, name)


def _broadcast(run: Run, variables: Sequence[Any], root: int, name: str) -> None:
    if run.size == 1:
        return
    by_type: dict[Any, list[Any]] = {}
    for each in variables:
        if is_owned(each):
            continue  # rows of a table that no other process has
        dtype = tf.as_dtype(each.dtype)
        if dtype.is_bool or not (dtype.is_floating or dtype.is_integer):
            continue  # such as the state of a string table, which no process changes
        by_type.setdefault(dtype, []).append(each)
    # The root waits for nobody, and would not learn that another process has other variables.
    operations.barrier(run, f"{_described(by_type)} of {name}")
    for dtype, members in by_type.items():
        sizes = [
            (i, dtype, int(np.prod(each.shape)) * dtype.size) for i, each in enumerate(members)
        ]
        buckets = buckets_of(sizes, _AT_ONCE)
        for number, bucket in enumerate(buckets):
            started = operations.start(
                run.handle,
                "broadcast",
                [tf.convert_to_tensor(members[i]) for i in bucket],
                f"{name}, {dtype.name}, {number + 1} of {len(buckets)}",
                root=root,
            )
            for i, value in zip(bucket, started.finish(), strict=True):
                # A variable would keep the memory of the operation, where the next one can use it.
                members[i].assign(tf.raw_ops.DeepCopy(x=value))


def _described(by_type: dict[Any, list[Any]]) -> str:
    """What differs if types or shapes do."""
    shapes = [(kind.name, tuple(each.shape)) for kind in by_type for each in by_type[kind]]
    count = sum(int(np.prod(shape)) for _, shape in shapes)
    return f"{len(shapes)} variables with {count} elements ({crc32(repr(shapes).encode()):08x})"
