# SPDX-License-Identifier: Apache-2.0
"""Decide where the rows of a table live, and what becomes of their gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import tensorflow as tf

from ...errors import UsageError
from ..backend.names import plain
from ..backend.tensorflow import operations
from ..backend.tensorflow.parts import Division, mark
from ..run.session import Session
from ..sync.base import Array

Way = Literal["dense", "gather", "owners"]
WAYS: tuple[Way, ...] = ("dense", "gather", "owners")


class _Owned(Division):
    """Rows of tables that no other process has. parallelize() lets an optimizer reduce their gradients."""

    @operations.no_autograph
    def prepare(self, optimizer: Any) -> None:
        if optimizer is None:
            raise UsageError(
                "a tape cannot serve tables whose rows are in several processes: use fit(), or "
                'parallelize(ways="gather")'
            )
        if not hasattr(optimizer, "_rdmatensor_outermost"):
            raise UsageError(
                "the model has tables whose rows are in several processes: compile() the model that "
                "parallelize() returned, and no other one"
            )


_OWNED = _Owned()


@dataclass(frozen=True, eq=False)
class Placement:
    """The way in which processes share a table of `rows` rows of `width` numbers.

    "dense": each has all of it, and gradients are all-reduced as a whole. "gather": each has all of it, and
    the rows of gradients are gathered. "owners": row r lives in process r % owners only, as its row r //
    owners; who needs it asks, and sends its gradient there. `partitions` is how many parts of the table are
    read and updated at a time: an owner uses partitions / owners threads. `row_wise` lets the optimizer touch
    only the rows that a step uses.
    """

    run: Session
    name: str
    rows: int
    width: int
    way: Way
    partitions: int = 1
    row_wise: bool = True

    @property
    def division(self) -> Division:
        """The division of rows with owners."""
        return _OWNED

    @property
    def shape(self) -> tuple[int, int]:
        """The shape of the whole table."""
        return self.rows, self.width

    @property
    def owners(self) -> int:
        """The number of processes that have rows, from rank 0 on."""
        return min(self.partitions, self.run.size)

    @property
    def threads(self) -> int:
        """The number of threads with which an owner reads and updates its rows."""
        return -(-self.partitions // self.owners)

    @property
    def owned(self) -> bool:
        """Whether each row lives in one process only."""
        return self.way == "owners" and self.run.size > 1

    @property
    def rows_here(self) -> int:
        """The number of rows of this process's variable. One that owns none has a row that nobody uses."""
        if not self.owned:
            return self.rows
        return max(1, len(range(self.run.rank, self.rows, self.owners)))

    def of(self, whole: Array) -> Array:
        """Return this process's rows of the whole table."""
        mine = whole[self.run.rank :: self.owners] if self.run.rank < self.owners else whole[:0]
        return mine if len(mine) else np.zeros((1, self.width), np.float32)

    def received(self, whole: Array | None, dtype: Any = np.float32) -> Array:
        """Return this process's rows of the table that rank 0 has; None elsewhere. All processes call it."""
        block = max(1, (16 << 20) // (4 * self.width * self.owners)) * self.owners
        found = []
        for begin in range(0, self.rows, block):
            shape = (min(block, self.rows - begin), self.width)
            part = np.zeros(shape, np.float32) if whole is None else whole[begin : begin + block]
            rows = operations.broadcast(
                self.run, np.ascontiguousarray(part), 0, f"rows of {plain(self.name)}"
            )
            if self.run.rank < self.owners:
                found.append(rows.numpy()[self.run.rank :: self.owners])
        mine = np.concatenate(found) if found else np.zeros((0, self.width), np.float32)
        return mine if len(mine) else np.zeros((1, self.width), np.float32)

    def whole(self, variable: Any) -> Array | None:
        """Return all rows in rank 0, of a variable that has this process's; None elsewhere. All call it."""
        longest = -(-self.rows // self.owners)
        block = max(1, (16 << 20) // (4 * self.width))
        mine = tf.convert_to_tensor(variable)[:longest]
        mine = tf.pad(mine, [[0, longest - mine.shape[0]], [0, 0]])
        found = None
        if self.run.rank == 0:
            found = np.empty((longest, self.owners, self.width), np.float32)
        for begin in range(0, longest, block):
            part = operations.all_gather(
                self.run, mine[begin : begin + block], f"all rows of {plain(self.name)}"
            )
            if found is not None:
                parts = part.numpy().reshape(self.run.size, -1, self.width)
                found[begin : begin + block] = parts[: self.owners].transpose(1, 0, 2)
        return None if found is None else found.reshape(-1, self.width)[: self.rows]


def place(variable: Any, placement: Placement) -> None:
    """Remember the placement of a variable of Keras or TensorFlow."""
    _of_tensorflow(variable)._rdmatensor_placement = placement
    if placement.owned:
        mark(variable, placement)


def placement_of(variable: Any) -> Placement | None:
    """Return the placement of a variable of Keras or TensorFlow, or None."""
    return getattr(_of_tensorflow(variable), "_rdmatensor_placement", None)


def _of_tensorflow(variable: Any) -> Any:
    return variable if isinstance(variable, tf.Variable) else getattr(variable, "value", None)


def is_owned(variable: Any) -> bool:
    """Return whether the variable has only rows of a table that this process owns."""
    placement = placement_of(variable)
    return placement is not None and placement.owned


def _table_gradient(op: Any, upstream: Any) -> Any:
    shape = tf.raw_ops.VariableShape(input=op.inputs[0], out_type=tf.int32)
    return [tf.IndexedSlices(tf.cast(upstream, tf.float32), op.inputs[1], shape), None]


tf.RegisterGradient("RdmatensorReadRows")(_table_gradient)


def _read(variable: Any, rows: Any, dtype: Any, placement: Placement) -> Any:
    variable = _of_tensorflow(variable)
    tf.gather(variable, tf.zeros([0], tf.int32))  # tapes see that the variable is used
    values = operations.library().rdmatensor_read_rows(
        variable.handle, rows, T=dtype, threads=placement.threads
    )
    return tf.ensure_shape(values, [None, placement.width])


@operations.no_autograph
def lookup(placement: Placement, variable: Any, ids: Any, dtype: Any) -> Any:
    """Return the rows of a table with owners that `ids` (int32 or int64, of any shape) name, as `dtype`.

    All processes call it, each with its own ids, which may be none. The gradient arrives at the owners as
    rows that may repeat; those with negative numbers do not count.
    """
    run, name = placement.run, plain(placement.name)
    size = run.size
    # Shapes are of no use between processes: each has its own.
    asked, counts, places = operations.library().rdmatensor_route(
        tf.reshape(ids, [-1]),
        rows=placement.rows,
        owners=placement.owners,
        size=size,
        detail=name,
    )
    all_counts = operations.all_gather(
        run, tf.ensure_shape(counts, [size]), f"number of rows of {name}"
    )
    padded, positions = operations.library().rdmatensor_spread(
        asked, places, all_counts, size=size, rank=run.rank
    )
    wanted = operations.all_to_all(run, tf.ensure_shape(padded, [None]), f"ids of {name}")
    rows = _read(variable, wanted, dtype, placement)

    def fetch(values: Any) -> tuple[Any, Callable[[Any], Any]]:
        arrived = operations.start(
            run.handle, "all_to_all", [values], f"rows of {name}", shapes=[values.shape]
        ).finish()[0]

        def gradient(upstream: Any) -> Any:
            sums = operations.library().rdmatensor_sum_at(
                tf.cast(upstream, tf.float32), positions, tf.size(padded)
            )
            return operations.start(
                run.handle, "all_to_all", [sums], f"gradients of {name}", shapes=[values.shape]
            ).finish()[0]

        return tf.gather(arrived, positions), gradient

    found = tf.custom_gradient(fetch)(rows)
    shape = tf.concat([tf.shape(ids), [placement.width]], 0)
    return tf.ensure_shape(tf.reshape(found, shape), ids.shape.concatenate([placement.width]))


def add_up(gradient: Any, rows: int, scale: float = 1.0) -> Any:
    """Return the IndexedSlices with each row once, multiplied by `scale`."""
    indices, values = operations.library().rdmatensor_sum_rows(
        tf.cast(gradient.indices, tf.int32), gradient.values, rows=rows, scale=scale
    )
    values = tf.ensure_shape(values, [None, *gradient.values.shape[1:]])
    return tf.IndexedSlices(values, tf.ensure_shape(indices, [None]), gradient.dense_shape)


@operations.no_autograph
def reduce(
    run: Session,
    gradients: Sequence[Any],
    variables: Sequence[Any],
    others: Callable[[list[Any]], list[Any]],
    keep_rows: bool = False,
) -> list[Any]:
    """Return the mean of each gradient over all processes, by the placement of its variable.

    `others` takes the gradients without those of owned rows, which are None, and returns their means. With
    `keep_rows`, gradients that travel as a whole become those of the rows that any process used.
    """
    left, own, used = list(gradients), {}, {}
    for i, (gradient, variable) in enumerate(zip(gradients, variables, strict=True)):
        placement = placement_of(variable)
        if placement is None or gradient is None:
            continue
        if isinstance(gradient, tf.IndexedSlices):
            scale = 1.0 / run.size if placement.owned else 1.0
            if placement.way == "dense" and run.size > 1:
                if keep_rows and placement.row_wise:
                    used[i] = _flags(gradient.indices, placement.rows)
                gradient = tf.convert_to_tensor(gradient)
            else:
                gradient = add_up(gradient, placement.rows_here, scale)
        elif placement.owned:
            gradient = gradient / run.size  # Keras has added up several steps
        if placement.owned:
            own[i], left[i] = gradient, None
        else:
            left[i] = gradient
    left = others(left)
    for i, flags in used.items():
        flags = operations.all_reduce(run, flags, "max", f"used rows of gradient {i}")
        rows = tf.cast(tf.where(flags)[:, 0], tf.int32)
        left[i] = tf.IndexedSlices(tf.gather(left[i], rows), rows, tf.shape(left[i]))
    return [own.get(i, each) for i, each in enumerate(left)]


def _flags(rows: Any, count: int) -> Any:
    """Return which of the rows are named, as zeros and ones."""
    ones = tf.ones_like(rows, tf.uint8)
    return tf.tensor_scatter_nd_max(tf.zeros([count], tf.uint8), rows[:, tf.newaxis], ones)
