# SPDX-License-Identifier: Apache-2.0
"""Operations on stores, in eager code and in functions.

A store is an rdmatensor.Store, opened and connected in Python. Several tensors lie side by side in a version
and in a slot, each at a multiple of 64 bytes: `store_nbytes` says how many bytes that takes. One tensor lies
there as its array would, so that peers without TensorFlow can use it. A function runs the operations of a
store in the order of the program. Any thread may call them. Operations on a store that is closed, or closes
while they wait, fail.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from .._api.wait import milliseconds
from .._ffi import ffi
from ..errors import Closed, UsageError
from ..store import Store
from .backend.tensorflow.operations import as_written, library, refuse_xla

# Where TensorFlow can use a tensor without copying it.
_ALIGNED = 64


class PulledTensors(NamedTuple):
    """The result of store_pull. `version` and `mark` are scalars of int64."""

    tensors: list[Any]
    version: Any
    mark: Any


class TakenTensors(NamedTuple):
    """The result of store_take. `arrived` is a scalar of bool, `rank` of int32 and `mark` of int64."""

    arrived: Any
    rank: Any
    mark: Any
    tensors: list[Any]


def store_nbytes(like: Sequence[Any]) -> int:
    """How many bytes a store's version or slot needs for tensors of the types and shapes of `like`.

    `like` are tensors, variables or tf.TensorSpec, with shapes that are known. UsageError otherwise.
    """
    end = 0
    for dtype, shape in zip(*_kinds(like), strict=True):
        end = -(-end // _ALIGNED) * _ALIGNED + int(np.prod(shape)) * dtype.size
    return end


@as_written
def store_publish(store: Store, tensors: Sequence[Any], mark: Any = 0) -> Any:
    """Copies tensors and makes them the newest version of `store`. Returns its number, from 1, as int64.

    `mark` is a number of int64 that readers get beside it, such as a step; it may be a tensor. Waits for
    nobody. InvalidArgumentError if the tensors take another number of bytes than a version has.
    """
    with _on_cpu(store, "store_publish"):
        return library().rdmatensor_store_publish(
            _handle_of(store), tf.cast(mark, tf.int64), _listed(tensors)
        )


@as_written
def store_pull(
    store: Store, rank: Any, like: Sequence[Any], timeout: float | None = None
) -> PulledTensors:
    """Reads the newest version of member `rank`, all of one version. `rank` may be a tensor.

    `like` tells types and shapes, as for store_nbytes. Waits for the first version, `timeout` seconds; None
    is the setting DEADLINE_MS. Raises DeadlineExceededError, also if the member overwrites versions faster
    than they can be read; AbortedError if the member is lost or not connected; CancelledError if the store
    closes or the step is cancelled while it waits; FailedPreconditionError if the store was closed before;
    InvalidArgumentError for a wrong rank or size. Messages name the member. No thread of TensorFlow waits.
    """
    types, shapes = _kinds(like)
    with _on_cpu(store, "store_pull"):
        version, mark, tensors = library().rdmatensor_store_pull(
            _handle_of(store),
            tf.cast(rank, tf.int32),
            T=types,
            shapes=shapes,
            timeout_ms=milliseconds(timeout),
        )
    return PulledTensors(tensors, version, mark)


@as_written
def store_push(
    store: Store, rank: Any, tensors: Sequence[Any], mark: Any = 0, timeout: float | None = None
) -> Any:
    """Writes tensors into the own slot at member `rank`. Returns whether that was free, as a scalar of bool.

    If it was not, nothing happened. After an error, the member may have got the tensors or not. `rank` and
    `mark` may be tensors. Errors are those of store_pull. One tensor is sent where it lies, several are
    copied once.
    """
    with _on_cpu(store, "store_push"):
        return library().rdmatensor_store_push(
            _handle_of(store),
            tf.cast(rank, tf.int32),
            tf.cast(mark, tf.int64),
            _listed(tensors),
            timeout_ms=milliseconds(timeout),
        )


@as_written
def store_take(store: Store, otherwise: Sequence[Any]) -> TakenTensors:
    """Takes the oldest push that has not been taken, copies it, and frees the slot. Does not wait.

    `otherwise` are tensors of the types and shapes that members push. They are the result, without a copy,
    if nothing has arrived; then `rank` is -1. InvalidArgumentError names a member that has sent another
    number of bytes; what it sent is dropped.
    """
    with _on_cpu(store, "store_take"):
        arrived, rank, mark, tensors = library().rdmatensor_store_take(
            _handle_of(store), _listed(otherwise)
        )
    return TakenTensors(arrived, rank, mark, tensors)


def _on_cpu(store: Store, what: str) -> Any:
    refuse_xla(f"{what} of {store.name!r}")
    return tf.device("/CPU:0")


def _listed(tensors: Sequence[Any]) -> list[Any]:
    if not isinstance(tensors, (list, tuple)) or not tensors:
        raise UsageError("stores take a list of tensors: put a single one into a list")
    return [tf.convert_to_tensor(each) for each in tensors]


def _kinds(like: Sequence[Any]) -> tuple[list[Any], list[tuple[int, ...]]]:
    if not isinstance(like, (list, tuple)) or not like:
        raise UsageError("stores take a list of tensors: put a single one into a list")
    types, shapes = [], []
    for each in like:
        given = each if hasattr(each, "shape") and hasattr(each, "dtype") else np.asarray(each)
        shape = tf.TensorShape(given.shape)
        if not shape.is_fully_defined():
            raise UsageError(f"a tensor for a store has shape {shape}: its sizes have to be known")
        types.append(tf.as_dtype(given.dtype))
        shapes.append(tuple(shape))
    return types, shapes


def _handle_of(store: Store) -> Any:
    """The store as a resource, until it is closed. One is made by the first operation."""
    if store._operations is not None:
        return store._operations
    handle = store._begin()
    try:
        with tf.init_scope(), tf.device("/CPU:0"):
            made = library().rdmatensor_store(
                store=int(ffi.cast("intptr_t", handle)),
                detail=f'"{store.name}"',
                bytes=store.nbytes,
                slot_bytes=store.slot_nbytes,
            )
        with store._changed:
            if store._closing:
                raise Closed(f"{store!r} is closed")
            if store._operations is None:
                store._leave = lambda: library().rdmatensor_store_leave(made)
                store._operations = made
            return store._operations
    finally:
        store._end()
