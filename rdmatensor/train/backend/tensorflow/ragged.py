# SPDX-License-Identifier: Apache-2.0
"""Exchange rows of which each process has, or gets, another number.

Operations of a group move equally much everywhere. So processes tell each other their numbers of rows first,
and pad what they send to the largest one. All processes call these functions together. Results have no
gradient here.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from . import operations


@operations.no_autograph
def all_gather(run: Any, tensor: Any, name: str, counts: Any = None) -> tuple[Any, Any]:
    """Join the rows of all processes by rank. Return them, and how many each process gave, as int64.

    `counts` are those numbers, if all processes know them. A scalar, and rows of different shapes, are an
    InvalidArgumentError in all processes.
    """
    tensor = tf.convert_to_tensor(tensor)
    if tensor.shape.rank == 0:
        operations.all_gather(run, tensor, name)  # which says, in all processes, what is wrong
    count = tf.shape(tensor, out_type=tf.int64)[0]
    if run.size == 1:
        return tf.identity(tensor), count[tf.newaxis]
    if counts is None:
        counts = operations.all_gather(run, count[tf.newaxis], f"number of {name}")
    longest = tf.reduce_max(counts)
    every = operations.all_gather(run, _padded(tensor, longest), name)
    return _present(every, counts, longest, tensor), counts


@operations.no_autograph
def all_to_all(run: Any, tensor: Any, splits: Any, name: str) -> tuple[Any, Any]:
    """Send the first splits[0] rows to rank 0, the next splits[1] ones to rank 1, and so on.

    `splits` is a vector of int64 with an entry for each process; rows beyond their sum stay here. Return the
    rows from all processes, by rank, and how many each of them sent. If splits are negative, or more than a
    process has rows, every process gets InvalidArgumentError, which names that rank.
    """
    tensor, splits = tf.convert_to_tensor(tensor), tf.cast(splits, tf.int64)
    if tensor.shape.rank == 0:
        operations.all_to_all(run, tensor, name)  # which says, in all processes, what is wrong
    rows = tf.shape(tensor, out_type=tf.int64)[0]
    mine = tf.concat([splits, rows[tf.newaxis]], 0)
    table = operations.all_gather(run, mine[tf.newaxis], f"splits of {name}")
    wanted, present = table[:, :-1], table[:, -1]
    fits = tf.logical_and(tf.reduce_all(wanted >= 0, 1), tf.reduce_sum(wanted, 1) <= present)
    checked = tf.debugging.Assert(
        tf.reduce_all(fits),
        [f"{name}: splits are not negative, and have no more rows than the tensor. By rank:", wanted,
         "of tensors with as many rows as", present],
        summarize=64,
    )  # fmt: skip
    with tf.control_dependencies([] if checked is None else [checked]):
        longest = tf.reduce_max(wanted)
        parts = [
            _padded(each, longest)
            for each in tf.split(tensor[: tf.reduce_sum(splits)], splits, num=run.size)
        ]
        every = operations.all_to_all(run, tf.concat(parts, 0), name)
    received = wanted[:, run.rank]
    return _present(every, received, longest, tensor), received


@operations.no_autograph
def reduce_scatter(run: Any, tensor: Any, op: Any, name: str) -> Any:
    """Do what operations.reduce_scatter does, where rows cannot be cut into equal parts, too.

    The first ranks get one more row then.
    """
    tensor = tf.convert_to_tensor(tensor)
    rows = tensor.shape[0] if tensor.shape.rank else 0
    if run.size == 1 or (rows is not None and rows % run.size == 0):
        return operations.reduce_scatter(run, tensor, op, name)
    count = tf.shape(tensor)[0]
    least, more = count // run.size, count % run.size
    ranks = tf.range(run.size)
    here = tf.range(least + 1)[tf.newaxis]
    sizes = least + tf.cast(ranks < more, tf.int32)
    first = (ranks * least + tf.minimum(ranks, more))[:, tf.newaxis]
    # Places that no row fills have a row of zeros, which is the last one.
    places = tf.where(here < sizes[:, tf.newaxis], first + here, count)
    filled = tf.gather(_padded(tensor, count + 1), tf.reshape(places, [-1]))
    part = operations.reduce_scatter(run, filled, op, name)
    return part[: sizes[run.rank]]


def _padded(tensor: Any, rows: Any) -> Any:
    """Return the tensor with rows of zeros up to so many."""
    shape = tf.shape(tensor, out_type=tf.int64)
    missing = tf.concat([[tf.cast(rows, tf.int64) - shape[0]], shape[1:]], 0)
    return tf.concat([tensor, tf.zeros(missing, tensor.dtype)], 0)


def _present(every: Any, counts: Any, longest: Any, like: Any) -> Any:
    """Return the rows that are no padding, of which each process has `counts`."""
    present = tf.reshape(tf.sequence_mask(counts, longest), [-1])
    found = tf.boolean_mask(every, present)
    return tf.ensure_shape(found, tf.TensorShape([None]).concatenate(like.shape[1:]))
