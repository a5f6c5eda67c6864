# SPDX-License-Identifier: Apache-2.0
"""Averages the gradients of all processes: dense ones in buckets, rows of embeddings by gathering them.

A bucket is reduced as soon as its gradients exist, while the backward pass goes on; the gradients of the
last layers come first. Every process has the same buckets, because they depend on the model and on what the
group measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import tensorflow as tf

from ....errors import UsageError
from ...run.run import Run
from ...sync.base import Array, Synchronizer
from ...sync.compression import Compression
from . import operations

# A bucket's messages cost as much as this share of its bytes, at most; but see _SMALLEST and _LARGEST.
_OVERHEAD = 0.05
_SMALLEST, _LARGEST = 256 << 10, 32 << 20
# To copy so many bytes costs more than another operation.
_ALONE = 256 << 10


@dataclass(eq=False)
class AllReduce(Synchronizer):
    """Synchronous training: every process applies the mean of all gradients, so all models stay equal.

    `bucket_bytes` is the size up to which gradients travel together; "auto" takes it from what the group
    measured when it was joined. `compression` is the type in which float32 gradients travel; None sends
    them as they are. TopK, PowerSGD and Quantized send much less: all dense gradients at once, when the
    backward pass is over, and what they leave out is added to the next step's.
    """

    bucket_bytes: int | Literal["auto"] = "auto"
    compression: Literal["float16", "bfloat16"] | Compression | None = None
    averages = True

    def __post_init__(self) -> None:
        check_bucket_bytes(self.bucket_bytes)
        named = self.compression in (None, "float16", "bfloat16")
        if not named and not isinstance(self.compression, Compression):
            raise UsageError(
                f'AllReduce(compression={self.compression!r}): give "float16", "bfloat16" or an object, '
                "such as TopK(0.01), PowerSGD(4) or Quantized()"
            )

    @property
    def exchanges(self) -> bool:  # type: ignore[override]
        """With errors to keep in backups, it takes part, but never exchanges parameters."""
        return isinstance(self.compression, Compression)

    def begin(self, run: Run, x: Array) -> int:
        return np.iinfo(np.int64).max

    def state(self) -> Mapping[str, Array]:
        return self.compression.state() if isinstance(self.compression, Compression) else {}

    def restore(self, state: Mapping[str, Array]) -> None:
        if isinstance(self.compression, Compression):
            self.compression.restore(state)

    def regroup(
        self, states: Sequence[Mapping[str, Array]], rank: int, size: int
    ) -> Mapping[str, Array]:
        if not isinstance(self.compression, Compression):
            return {}
        return self.compression.regroup(states, rank, size)

    def gradients(self, run: Run, gradients: Sequence[Any], name: str) -> list[Any]:
        return mean(run, gradients, self, name, self.names)


def check_bucket_bytes(wanted: Any) -> None:
    """UsageError if it is no size of buckets."""
    if wanted != "auto" and (isinstance(wanted, bool) or not isinstance(wanted, int) or wanted < 1):
        raise UsageError(f'bucket_bytes is {wanted!r}: give a number of bytes, or "auto"')


def bucket_bytes_of(run: Run, wanted: int | Literal["auto"]) -> int:
    """The size of buckets. "auto" takes it from the group's costs, which are the same in all processes."""
    if wanted != "auto":
        return wanted
    assert run.group is not None
    info = run.group.info
    between = 1 if info.hosts > 1 else 0
    per_byte = max(info.byte_ns[between], 1e-3)
    return int(
        min(max(info.latency_ns[between] * run.size / per_byte / _OVERHEAD, _SMALLEST), _LARGEST)
    )


@operations.as_written
def mean(
    run: Run, gradients: Sequence[Any], sync: AllReduce, name: str, names: Sequence[str] = ()
) -> list[Any]:
    """The mean of each gradient over all processes. None stays None.

    Each is a tensor or IndexedSlices. All processes give gradients of the same variables in the same order;
    `names` are those of the variables. The operation fails if processes have gradients of different ones.
    """
    if run.size == 1:
        return list(gradients)
    if len(names) != len(gradients):
        names = [f"gradient {i}" for i in range(len(gradients))]
    results = list(gradients)
    dense = [i for i, each in enumerate(gradients) if isinstance(each, tf.Tensor)]
    if isinstance(sync.compression, Compression):
        return _compressed(run, results, dense, sync.compression, name, names)
    limit = bucket_bytes_of(run, sync.bucket_bytes)
    buckets = buckets_of(
        [(i, gradients[i].dtype, bytes_of(gradients[i])) for i in reversed(dense)], limit
    )
    under_way = []
    for number, members in enumerate(buckets):
        heading = f"gradients {number + 1} of {len(buckets)} of {name}"
        detail = operations.listed(heading, [names[i] for i in members])
        inputs = [gradients[i] for i in members]
        under_way.append((members, inputs[0].dtype, _start(run, inputs, sync.compression, detail)))
    # Rows are gathered while the buckets are under way.
    for i, each in enumerate(gradients):
        if isinstance(each, tf.IndexedSlices):
            results[i] = _mean_rows(run, each, f"rows of {names[i]} of {name}")
    for members, dtype, started in under_way:
        for i, result in zip(members, started.finish(), strict=True):
            results[i] = tf.cast(result, dtype)
    return results


def _compressed(
    run: Run,
    results: list[Any],
    dense: list[int],
    compression: Compression,
    name: str,
    names: Sequence[str],
) -> list[Any]:
    """Dense gradients as one vector, in Python; then rows, one after the other."""
    shapes = [tuple(results[i].shape) for i in dense]
    done: list[Any] = []
    if dense:
        detail = operations.listed(f"gradients of {name}", [names[i] for i in dense])
        flat = [tf.reshape(tf.cast(results[i], tf.float32), [-1]) for i in dense]

        def mean_of(vector: Array) -> Array:
            assert run.group is not None
            return compression.mean(run.group, vector, shapes, detail, run.timeout)

        found = tf.numpy_function(mean_of, [tf.concat(flat, 0)], tf.float32, name="compressed_mean")
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


def bytes_of(tensor: Any) -> int:
    return int(tensor.shape.num_elements() or 0) * int(tensor.dtype.size)


def buckets_of(sized: Sequence[tuple[int, Any, int]], limit: int) -> list[list[int]]:
    """Groups tensors, given by number, type and bytes, in their order; each group has one type.

    A large tensor is alone: it travels from where it lies, while those of a group are copied together. The
    group that is complete first comes first, because operations start in the order of the program.
    """
    places = {number: place for place, (number, _, _) in enumerate(sized)}
    buckets: list[list[int]] = []
    open_buckets: dict[Any, tuple[list[int], int]] = {}
    for number, dtype, size in sized:
        if size >= _ALONE:
            buckets.append([number])
            continue
        bucket, filled = open_buckets.get(dtype, ([], 0))
        if not bucket or filled + size > limit:
            bucket, filled = [], 0
            buckets.append(bucket)
        bucket.append(number)
        open_buckets[dtype] = (bucket, filled + size)
    return sorted(buckets, key=lambda bucket: places[bucket[-1]])


def _start(run: Run, inputs: list[Any], compression: str | None, detail: str) -> operations.Started:
    more = operations.averaging(inputs[0].dtype, run.size)
    if compression is not None and inputs[0].dtype == tf.float32:
        more = operations.averaging(tf.as_dtype(compression), run.size)
        # What does not fit into the type may do so as a part of the mean.
        factor = more.pop("scale", 1.0)
        inputs = [tf.cast(each * factor if factor != 1.0 else each, compression) for each in inputs]
    return operations.start(run.handle, "all_reduce", inputs, detail, **more)


def _mean_rows(run: Run, rows: Any, detail: str) -> Any:
    """Joins the rows of all processes. Each may have another number of them."""
    values, indices = rows.values, rows.indices
    count = tf.shape(indices, out_type=tf.int64)[0]
    counts = operations.all_gather(run, count[tf.newaxis], f"number of {detail}")
    longest = tf.reduce_max(counts)
    padding = longest - count
    all_indices = operations.all_gather(
        run, tf.pad(indices, [[0, padding]]), f"indices of {detail}"
    )
    shape = tf.concat([[padding], tf.shape(values, out_type=tf.int64)[1:]], 0)
    padded = tf.concat([values / run.size, tf.zeros(shape, values.dtype)], 0)
    all_values = operations.all_gather(run, padded, f"values of {detail}")
    real = tf.reshape(tf.sequence_mask(counts, longest), [-1])
    return tf.IndexedSlices(
        tf.boolean_mask(all_values, real), tf.boolean_mask(all_indices, real), rows.dense_shape
    )
