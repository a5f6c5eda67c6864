# SPDX-License-Identifier: Apache-2.0
"""Average the gradients of all processes: dense ones in buckets, rows of embeddings by gathering them.

A bucket is reduced as soon as its gradients exist, while the backward pass goes on; the gradients of the last
layers come first. Every process has the same buckets, because they depend on the model and on what the group
measured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import tensorflow as tf

from ...run.membership import Array, Membership
from ..buckets import bucket_bytes_of, buckets_of
from . import operations, ragged


@operations.no_autograph
def mean(
    run: Membership,
    gradients: Sequence[Any],
    bucket_bytes: int | Literal["auto"] = "auto",
    wire: str | None = None,
    name: str = "gradients",
    names: Sequence[str] = (),
    reduction: Literal["mean", "sum"] = "mean",
) -> list[Any]:
    """Average gradients; see Backend.mean. Each is a tensor, IndexedSlices, or None, which stays None.

    With `reduction` "sum", add them up instead.
    """
    if run.size == 1:
        return list(gradients)
    names = names or [f"gradient {i}" for i in range(len(gradients))]
    results, dense = list(gradients), _dense(gradients)
    limit = bucket_bytes_of(run, bucket_bytes)
    buckets = buckets_of(
        [(i, gradients[i].dtype, bytes_of(gradients[i])) for i in reversed(dense)], limit
    )
    under_way = []
    for number, members in enumerate(buckets):
        heading = f"gradients {number + 1} of {len(buckets)} of {name}"
        detail = operations.listed(heading, [names[i] for i in members])
        inputs = [gradients[i] for i in members]
        under_way.append((members, inputs[0].dtype, _start(run, inputs, wire, detail, reduction)))
    # Rows are gathered while the buckets are under way.
    for i, each in enumerate(gradients):
        if isinstance(each, tf.IndexedSlices):
            rows = (
                each
                if reduction == "mean"
                else tf.IndexedSlices(each.values * run.size, each.indices, each.dense_shape)
            )
            results[i] = _mean_rows(run, rows, f"rows of {names[i]} of {name}")
    for members, dtype, started in under_way:
        for i, result in zip(members, started.finish(), strict=True):
            results[i] = tf.cast(result, dtype)
    return results


@operations.no_autograph
def as_vector(
    run: Membership,
    gradients: Sequence[Any],
    change: Callable[[Array, Sequence[tuple[int, ...]], str], Array],
    name: str,
    names: Sequence[str] = (),
) -> list[Any]:
    """Change gradients as one vector; see Backend.as_vector."""
    if run.size == 1:
        return list(gradients)
    names = names or [f"gradient {i}" for i in range(len(gradients))]
    results, dense = list(gradients), _dense(gradients)
    shapes = [tuple(results[i].shape) for i in dense]
    done: list[Any] = []
    if dense:
        detail = operations.listed(f"gradients of {name}", [names[i] for i in dense])
        flat = [tf.reshape(tf.cast(results[i], tf.float32), [-1]) for i in dense]

        def changed(vector: Array) -> Array:
            return change(vector, shapes, detail)

        found = tf.numpy_function(changed, [tf.concat(flat, 0)], tf.float32, name="as_vector")
        sizes = [int(np.prod(shape)) for shape in shapes]
        done = [found]
        for i, shape, part in zip(
            dense, shapes, tf.split(tf.ensure_shape(found, [sum(sizes)]), sizes), strict=True
        ):
            results[i] = tf.cast(tf.reshape(part, shape), results[i].dtype)
    # The group's operations have one order in all processes.
    with tf.control_dependencies(done):
        for i, each in enumerate(results):
            if isinstance(each, tf.IndexedSlices):
                results[i] = _mean_rows(run, each, f"rows of {names[i]} of {name}")
    return results


def _dense(gradients: Sequence[Any]) -> list[int]:
    return [i for i, each in enumerate(gradients) if isinstance(each, tf.Tensor)]


def bytes_of(tensor: Any) -> int:
    """Return the size of a tensor in bytes."""
    return int(tensor.shape.num_elements() or 0) * int(tensor.dtype.size)


def _start(
    run: Membership, inputs: list[Any], compression: str | None, detail: str, reduction: str
) -> operations.Started:
    wire = inputs[0].dtype
    if compression is not None and wire == tf.float32:
        wire = tf.as_dtype(compression)
    more = operations.averaging(wire, run.size) if reduction == "mean" else {"reduction": "sum"}
    if wire != inputs[0].dtype:
        # What does not fit into the type may do so as a part of the mean.
        factor = more.pop("scale", 1.0)
        inputs = [tf.cast(each * factor if factor != 1.0 else each, wire) for each in inputs]
    return operations.start(run.handle, "all_reduce", inputs, detail, **more)


def _mean_rows(run: Membership, rows: Any, detail: str) -> Any:
    """Join the rows of all processes, divided by their number. Each may have another number of them."""
    joined, counts = ragged.all_gather(run, rows.indices, f"indices of {detail}")
    values, _ = ragged.all_gather(run, rows.values / run.size, f"values of {detail}", counts)
    return tf.IndexedSlices(values, joined, rows.dense_shape)
