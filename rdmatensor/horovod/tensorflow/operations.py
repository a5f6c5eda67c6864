# SPDX-License-Identifier: Apache-2.0
"""Run Horovod's operations on those of rdmatensor.train, with the gradients that Horovod gives them.

Names have to be the same in all processes, as have types, and shapes up to the first dimension where rows are
gathered. If they differ, every process gets Disagreement, which quotes two of them. If a process is lost, the
others get HorovodInternalError. In a tf.function it is TensorFlow that raises errors: InvalidArgumentError,
or AbortedError. Any thread may call operations, if all processes start them in one order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from numbers import Real
from typing import Any, TypeVar

import tensorflow as tf

from ...errors import Unsupported, UsageError
from ...train.backend.tensorflow import operations, ragged
from ...train.backend.tensorflow.operations import no_autograph
from ..absent import refuse_adasum
from ..reductions import Average, ReduceOp, Sum, chosen
from .compression import Compression
from .process import ProcessSet, global_process_set, internal_errors, members_of

_Function = TypeVar("_Function", bound=Callable[..., Any])
_REDUCTIONS: Any = {
    ReduceOp.SUM: "sum",
    ReduceOp.MIN: "min",
    ReduceOp.MAX: "max",
    ReduceOp.PRODUCT: "product",
}


def _operation(function: _Function) -> _Function:
    """Let a function raise HorovodInternalError, and keep AutoGraph away."""

    @wraps(function)
    def run(*arguments: Any, **named: Any) -> Any:
        with internal_errors():
            return function(*arguments, **named)

    return no_autograph(run)  # type: ignore[return-value]


def scaled(tensor: Any, factor: float) -> Any:
    """Multiply a tensor. Integers are multiplied as float64, and lose what follows the point.

    Floats of 16 bits are multiplied as float32. Tensors of other types stay: operations refuse them.
    """
    if isinstance(factor, (int, float)) and factor == 1.0:
        return tensor
    kind = tensor.dtype
    if not (kind.is_floating or kind.is_integer):
        return tensor
    exact = tf.float64 if kind.is_integer else tf.float32 if kind.size < 4 else kind
    return tf.cast(tf.cast(tensor, exact) * tf.cast(factor, exact), kind)


def _called(name: str, op: ReduceOp, *factors: Any) -> str:
    """Return the name of an operation with all else that has to be the same in all processes."""
    known = [float(each) for each in factors if isinstance(each, Real)]
    scaling = "".join(f", times {each}" for each in known if known != [1.0, 1.0])
    return f"{name} by {op.name.lower()}{scaling}"


def _mean_of(total: Any, size: int) -> Any:
    """Divide a sum of integers by the number of processes. What follows the point is cut off."""
    # The number of processes may be larger than integers of 8 bits, and sums of 64 bits than floats hold.
    wide = tf.int32 if total.dtype.size < 4 else total.dtype
    return tf.cast(tf.truncatediv(tf.cast(total, wide), tf.cast(size, wide)), total.dtype)


def _combined(members: Any, act: Any, tensor: Any, op: ReduceOp, name: str) -> Any:
    """Reduce a tensor by `act`, also to the mean of integers."""
    if op != Average:
        return act(members, tensor, _REDUCTIONS[op], name)
    if not tensor.dtype.is_integer:
        return act(members, tensor, "mean", name)
    return _mean_of(act(members, tensor, "sum", name), members.size)


@_operation
def allreduce(
    tensor: Any,
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
) -> Any:
    """Combine the tensors of all processes, element by element: by default, to their mean.

    Of IndexedSlices, the rows of all processes are gathered. Devices and scopes of names are ignored. The
    gradient is reduced as the tensor was; of Min, Max and Product there is none. Raises UsageError for
    IndexedSlices that are not summed or averaged, and Unsupported for Adasum.
    """
    (result,) = grouped_allreduce(
        [tensor],
        average,
        compression=compression,
        op=op,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        name=name or "allreduce",
        process_set=process_set,
    )
    return result


@_operation
def grouped_allreduce(
    tensors: Sequence[Any],
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    name: str | None = None,
) -> list[Any]:
    """Do what allreduce does, for several tensors, in one operation for each type."""
    how, members = chosen(average, op), members_of(process_set)
    refuse_adasum(how)
    name = _called(name or "grouped_allreduce", how, prescale_factor, postscale_factor)
    results: list[Any] = list(tensors)
    by_type: dict[Any, list[int]] = {}
    kept: dict[int, Any] = {}
    for i, each in enumerate(tensors):
        if isinstance(each, tf.IndexedSlices):
            if how not in (Average, Sum) or (prescale_factor, postscale_factor) != (1.0, 1.0):
                raise SparseUnsupported(
                    f"{name}: IndexedSlices can be summed and averaged, without factors: convert them with "
                    "tf.convert_to_tensor"
                )
            results[i] = _rows(members, each, how, f"{name}, {i}")
            continue
        sent, kept[i] = compression.compress(tf.convert_to_tensor(each))
        results[i] = scaled(sent, prescale_factor)
        by_type.setdefault(results[i].dtype, []).append(i)
    for dtype, places in by_type.items():
        one = name if len(tensors) == 1 else f"{name}, {dtype.name}"
        reduced = _reduced(members, [results[i] for i in places], how, one)
        for i, value in zip(places, reduced, strict=True):
            results[i] = compression.decompress(scaled(value, postscale_factor), kept[i])
    return results


class SparseUnsupported(UsageError, NotImplementedError):
    """IndexedSlices cannot be combined so. Horovod raises NotImplementedError."""


def _reduced(members: Any, tensors: list[Any], op: ReduceOp, name: str) -> list[Any]:
    if members.size == 1:
        return [tf.identity(each) for each in tensors]
    if len(tensors) == 1:
        return [_combined(members, operations.all_reduce, tensors[0], op, name)]
    mean = op == Average and not tensors[0].dtype.is_integer
    more = (
        operations.averaging(tensors[0].dtype, members.size)
        if mean
        else {"reduction": _REDUCTIONS[Sum if op == Average else op]}
    )

    def apply(*values: Any) -> Any:
        def gradient(*upstream: Any) -> Any:
            if op not in (Average, Sum):
                raise UsageError(f"{name}: {op.name} has no gradient: use Sum or Average")
            return _reduced(members, list(upstream), op, f"gradient of {name}")

        found = operations.start(members.handle, "all_reduce", list(values), name, **more).finish()
        if op == Average and not mean:
            found = [_mean_of(each, members.size) for each in found]
        return found, gradient

    return list(tf.custom_gradient(apply)(*tensors))


def _rows(members: Any, slices: Any, op: ReduceOp, name: str) -> Any:
    values, counts = ragged.all_gather(members, slices.values, f"values of {name}")
    indices, _ = ragged.all_gather(members, slices.indices, f"indices of {name}", counts)
    if op == Average:
        values = values / tf.cast(members.size, values.dtype)
    return tf.IndexedSlices(values, indices, slices.dense_shape)


def _mean_of_gradient(members: Any, upstream: Any, name: str) -> Any:
    return _combined(
        members,
        operations.all_reduce,
        tf.convert_to_tensor(upstream),
        Average,
        f"gradient of {name}",
    )


@_operation
def allgather(
    tensor: Any,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Join the tensors of all processes along the first dimension, in which they may differ.

    The gradient is this process's part of the mean of all gradients.
    """
    members, called = members_of(process_set), name or "allgather"
    tensor = tf.convert_to_tensor(tensor)
    if tensor.dtype.is_bool:
        return tf.cast(allgather(tf.cast(tensor, tf.uint8), name, process_set=process_set), tf.bool)

    def apply(value: Any) -> Any:
        joined, counts = ragged.all_gather(members, value, called)

        def gradient(upstream: Any) -> Any:
            mean = _mean_of_gradient(members, upstream, called)
            return tf.split(mean, counts, num=members.size)[members.rank]

        return joined, gradient

    return tf.custom_gradient(apply)(tensor)


def grouped_allgather(
    tensors: Sequence[Any],
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Do what allgather does, for several tensors."""
    called = name or "grouped_allgather"
    return [
        allgather(each, f"{called}, {i}", process_set=process_set) for i, each in enumerate(tensors)
    ]


@_operation
def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Return the tensor of `root_rank`, which is a rank among all processes. The others give one like it.

    It blocks until all have called it, also in `root_rank`. The gradient is the mean of all gradients in
    `root_rank`, and zero elsewhere. Raises UsageError if `root_rank` is not in the set.
    """
    members, called = members_of(process_set), name or "broadcast"
    if root_rank not in members.ranks:
        raise UsageError(f"{called}: root_rank is {root_rank}: give one of {list(members.ranks)}")
    root = list(members.ranks).index(root_rank)

    def apply(value: Any) -> Any:
        def gradient(upstream: Any) -> Any:
            mean = _mean_of_gradient(members, upstream, called)
            return mean if members.rank == root else tf.zeros_like(mean)

        with tf.control_dependencies(_meet(members, value, f"{called} from {root_rank}")):
            return operations.broadcast(members, value, root, called), gradient

    return tf.custom_gradient(apply)(tf.convert_to_tensor(tensor))


def _meet(members: Any, value: Any, name: str) -> list[Any]:
    """Let all processes compare what they broadcast: its root waits for nobody, and would not learn of it."""
    if members.size == 1:
        return []
    shape = tf.shape(value, out_type=tf.int64)
    shapes = operations.all_gather(
        members, shape[tf.newaxis], f"shape of {value.dtype.name} of {name}"
    )
    text = f"{name}: members disagree about the operation: shapes by rank are"
    checked = tf.debugging.Assert(tf.reduce_all(shapes == shapes[:1]), [text, shapes], summarize=64)
    return [] if checked is None else [checked]


@_operation
def alltoall(
    tensor: Any,
    splits: Any = None,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Send splits[i] rows to process i, and return the rows that all sent here.

    With `splits`, a vector of integers, also return how many rows came from each process. Without it, the
    rows are cut into equal parts. The gradient travels back. Splits that do not fit are
    tf.errors.InvalidArgumentError in all processes.
    """
    members, called = members_of(process_set), name or "alltoall"
    tensor = tf.convert_to_tensor(tensor)
    wanted: Any
    if splits is None:
        rows = tf.shape(tensor, out_type=tf.int64)[:1][0] if tensor.shape.rank != 0 else 0
        even = tf.where(rows % members.size == 0, rows // members.size, -1)
        wanted, kind = tf.fill([members.size], even), tf.int32
    else:
        wanted = tf.convert_to_tensor(splits)
        kind = wanted.dtype
        if wanted.dtype not in (tf.int32, tf.int64):
            raise UsageError(f"{called}: splits are {kind.name}: give int32")
        if wanted.shape.rank != 1 or wanted.shape[0] not in (None, members.size):
            raise UsageError(
                f"{called}: splits have shape {wanted.shape}: give {members.size} numbers"
            )

    if tensor.dtype.is_bool:
        sent = tf.cast(tensor, tf.uint8)
        found, received = ragged.all_to_all(members, sent, wanted, called)
        found = tf.cast(found, tf.bool)
        return found if splits is None else (found, tf.cast(received, kind))

    def apply(value: Any) -> Any:
        found, received = ragged.all_to_all(members, value, wanted, called)

        def gradient(upstream: Any) -> Any:
            back, _ = ragged.all_to_all(members, upstream, received, f"gradient of {called}")
            # Rows beyond the splits went nowhere.
            rest = tf.shape(value)[0] - tf.shape(back)[0]
            return tf.concat([back, tf.zeros_like(value[:rest], back.dtype)], 0)

        counts.append(tf.cast(received, kind))
        return found, gradient

    counts: list[Any] = []
    result = tf.custom_gradient(apply)(tensor)
    return result if splits is None else (result, counts[0])


@_operation
def reducescatter(
    tensor: Any,
    device_dense: str = "",
    compression: Any = Compression.none,
    op: int = Average,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """Return this process's rows of what allreduce gives; the first processes have one more if need be.

    The gradient is that of Horovod: gradients are gathered, and multiplied by the factors and, for Sum, by
    the number of processes. Of Min, Max and Product there is none.
    """
    how, members = chosen(None, op), members_of(process_set)
    refuse_adasum(how)
    called = _called(name or "reducescatter", how, prescale_factor, postscale_factor)
    sent, kept = compression.compress(tf.convert_to_tensor(tensor))

    def apply(value: Any) -> Any:
        def gradient(upstream: Any) -> Any:
            if how not in (Average, Sum):
                raise UsageError(f"{called}: {how.name} has no gradient: use Sum or Average")
            factor = prescale_factor * postscale_factor * (members.size if how == Sum else 1)
            every, _ = ragged.all_gather(members, scaled(upstream, factor), f"gradient of {called}")
            return every

        value = scaled(value, prescale_factor)
        part = _combined(members, ragged.reduce_scatter, value, how, called)
        return scaled(part, postscale_factor), gradient

    return compression.decompress(tf.custom_gradient(apply)(sent), kept)


def grouped_reducescatter(
    tensors: Sequence[Any],
    device_dense: str = "",
    compression: Any = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    ignore_name_scope: bool = False,
) -> list[Any]:
    """Do what reducescatter does, for several tensors."""
    return [
        reducescatter(
            each,
            compression=compression,
            op=op,
            name=f"{name or 'grouped_reducescatter'}, {i}",
            process_set=process_set,
            prescale_factor=prescale_factor,
            postscale_factor=postscale_factor,
        )
        for i, each in enumerate(tensors)
    ]


@_operation
def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Wait until every process has called it."""
    operations.barrier(members_of(process_set), "barrier")


def join() -> int:
    """Raise Unsupported: operations need all processes."""
    raise Unsupported(
        "join: processes take equally many steps here: give fit() a steps_per_epoch, or let the data repeat; "
        "rdmatensor.train.callbacks(uneven=True) trains on different numbers of batches",
        "UNSUPPORTED",
    )
