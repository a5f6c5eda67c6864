# SPDX-License-Identifier: Apache-2.0
"""Convert the arguments of collective operations for C, and their failures into exceptions."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from .._ffi import ffi, lib
from ..errors import RdmaError, UsageError, _text, error_from
from . import buffers
from .arguments import c_text, c_text_or_null, whole
from .buffers import Array, shared
from .wait import milliseconds

BYTES = ffi.typeof("char[]")
# The upper half of a tag: one value for tags that users give, one for started operations without a tag.
TAG_GIVEN = 1 << 63 | 1
TAG_STARTED = 1 << 63 | 2

Op: TypeAlias = Literal["sum", "product", "min", "max", "mean"]
Algorithm: TypeAlias = Literal["auto", "flat", "halving", "ring", "direct", "hierarchical", "trees"]
Kind: TypeAlias = Literal[
    "all_reduce", "reduce_scatter", "all_gather", "broadcast", "all_to_all", "barrier"
]

KINDS: dict[str, int] = {
    "all_reduce": lib.RDT_ALL_REDUCE,
    "reduce_scatter": lib.RDT_REDUCE_SCATTER,
    "all_gather": lib.RDT_ALL_GATHER,
    "broadcast": lib.RDT_BROADCAST,
    "all_to_all": lib.RDT_ALL_TO_ALL,
    "barrier": lib.RDT_BARRIER,
}
_OPS: dict[str, int] = {
    "sum": lib.RDT_SUM,
    "product": lib.RDT_PRODUCT,
    "min": lib.RDT_MIN,
    "max": lib.RDT_MAX,
    "mean": lib.RDT_MEAN,
}
ALGORITHMS: dict[str, int] = {
    _text(lib.rdt_algorithm_name(number)): number for number in range(lib.RDT_ALGORITHM_COUNT)
}
# Found by name, because ml_dtypes, which has bfloat16, need not be installed.
_DTYPES: dict[str, int] = {
    "float16": lib.RDT_FLOAT16,
    "bfloat16": lib.RDT_BFLOAT16,
    "float32": lib.RDT_FLOAT32,
    "float64": lib.RDT_FLOAT64,
    "int8": lib.RDT_INT8,
    "int16": lib.RDT_INT16,
    "int32": lib.RDT_INT32,
    "int64": lib.RDT_INT64,
    "uint8": lib.RDT_UINT8,
    "uint16": lib.RDT_UINT16,
    "uint32": lib.RDT_UINT32,
    "uint64": lib.RDT_UINT64,
}


class Tree(NamedTuple):
    """A spanning tree of a group, for one kind of operation.

    `parents` has each member's parent, and for the root itself. Data flow from the root in "broadcast" and
    "all_gather", to it in "reduce_scatter", to it and back in "all_reduce". `rate` is in bytes per second:
    trees of the same kind, and the same root unless the kind is "all_reduce", share the data in proportion.
    """

    kind: Kind
    root: int
    rate: int
    parents: tuple[int, ...]


def number(what: str, name: str, table: dict[str, int]) -> int:
    """Return the number of `name` in `table`. Raises UsageError, which lists the names, if it has none."""
    try:
        return table[name]
    except (KeyError, TypeError):
        raise UsageError(f"{what} is {name!r}: give one of {', '.join(table)}") from None


# A cache: computing a dtype's name takes microseconds.
_codes: dict[np.dtype[Any], int] = {}


# Operations that take arrays of any dtype, because they only move bytes.
_MOVES = ("all_gather", "broadcast", "all_to_all")


def _dtype_code(array: Array) -> int | None:
    """Return the C library's number for the array's dtype, or None if it has none."""
    if not isinstance(array, np.ndarray):
        raise UsageError(f"{type(array).__name__} is not a numpy array: pass numpy.asarray(it)")
    dtype = array.dtype
    code = _codes.get(dtype)
    if code is None and dtype.isnative and dtype.name in _DTYPES:
        code = _codes[dtype] = _DTYPES[dtype.name]
    return code


def check_dtype(kind: str, array: Array) -> None:
    """Raise UsageError if operations of this kind do not take the array's dtype."""
    if _dtype_code(array) is not None:
        return
    dtype = array.dtype
    if dtype.hasobject:
        raise UsageError(f"dtype {dtype} holds Python objects, which have no bytes to send")
    if kind not in _MOVES or not dtype.itemsize:
        raise UsageError(
            f"arrays of dtype {dtype} cannot be combined: use one of {', '.join(_DTYPES)} in "
            "native byte order, or a view as one"
        )


def known(
    kind: str, array: Array, out: Array, detail: str | None
) -> tuple[Array, Array, str | None]:
    """Return arrays that C knows: the same, or their bytes with the dtype in the detail."""
    if _dtype_code(array) is not None:
        return array, out, detail
    check_dtype(kind, array)
    if not (array.flags.c_contiguous and out.flags.c_contiguous):
        raise unusable(array, out, TypeError("not C-contiguous"))
    moved = array.reshape(-1).view(np.uint8)
    into = moved if out is array else out.reshape(-1).view(np.uint8)
    return moved, into, f"dtype {array.dtype}" + ("" if detail is None else f"\n{detail}")


def new_call(kind: str, array: Array, op: str, algorithm: str, root: int) -> Any:
    """Return the arguments of an operation, without the arrays, their size and the tag."""
    call = ffi.new("rdt_collective *")
    call.struct_size = ffi.sizeof("rdt_collective")
    call.kind = number("kind", kind, KINDS)
    call.dtype = _DTYPES[array.dtype.name]
    call.op = number("op", op, _OPS)
    call.algorithm = number("algorithm", algorithm, ALGORITHMS)
    call.timeout_ms = lib.RDT_TIMEOUT_DEFAULT
    call.stop = lib.rdt_python_interrupted
    call.root = whole("root", root, most=2**32 - 1)
    return call


def result_of(kind: str, array: Any, out: Any, members: int) -> Any:
    """Return `out` if it fits the result of an operation among `members`, or a new array if it is None."""
    array, given = shared(array), shared(out)
    check_dtype(kind, array)
    size = array.size
    if kind == "all_gather":
        size *= members
    elif kind != "all_reduce":
        if array.shape[:1] == () or array.shape[0] % members:
            raise UsageError(
                f"{kind} cannot cut the first axis of shape {array.shape} into {members} parts"
            )
        if kind == "reduce_scatter":
            size //= members
    if out is None:
        return np.empty(_result_shape(kind, array.shape, members), array.dtype)
    check_dtype(kind, given)
    if given.dtype != array.dtype:
        raise UsageError(f"out has dtype {given.dtype}, array has {array.dtype}")
    if given.size != size:
        raise UsageError(f"out has {given.size} elements, the result of {kind} has {size}")
    return out


def _result_shape(kind: str, shape: tuple[int, ...], members: int) -> tuple[int, ...]:
    if kind == "all_gather":
        return (members * shape[0], *shape[1:]) if shape else (members,)
    if kind == "reduce_scatter":
        return (shape[0] // members, *shape[1:])
    return shape


def unusable(array: Array, out: Array, error: Exception) -> UsageError:
    """Return the error that says why the bytes of one of the arrays cannot be used."""
    if array.flags.c_contiguous and not out.flags.writeable:
        return UsageError("the array that the result goes into is read-only")
    return buffers.unusable(out if array.flags.c_contiguous else array, error)


def checked_tag(tag: int) -> tuple[int, int]:
    """Return the two halves of a tag for C. Raises UsageError for a number out of range."""
    return whole("tag", tag, most=2**63 - 1), TAG_GIVEN


def tree_rows(trees: Sequence[Tree], size: int) -> tuple[Any, Any]:
    """Return the trees for C, and what must live as long."""
    rows = ffi.new("rdt_group_tree[]", len(trees))
    keep = []
    for row, (kind, root, rate, parents) in zip(rows, trees, strict=True):
        if len(parents) != size:
            raise UsageError(f"a tree has {len(parents)} parents: the group has {size} members")
        row.kind, row.root = (
            number("kind", kind, KINDS),
            whole("a tree's root", root, most=2**32 - 1),
        )
        row.rate = whole("a tree's rate", rate)
        places = [whole("a tree's parent", each, most=2**32 - 1) for each in parents]
        row.parents = parent = ffi.new("uint32_t[]", places)
        keep.append(parent)
    return rows, keep


def join_options(
    rank: int, size: int, root: str | None, name: str, timeout: float | None, expect: str | None
) -> tuple[Any, Any]:
    """Return the options of a group, and the texts that they point to."""
    options = ffi.new("rdt_group_options *")
    options.struct_size = ffi.sizeof("rdt_group_options")
    texts = c_text("name", name), c_text_or_null("root", root), c_text_or_null("expect", expect)
    options.name, options.root, options.root_name = texts
    options.timeout_ms = milliseconds(timeout)
    options.size = whole("size", size, 1, 2**32 - 1)
    options.rank = whole("rank", rank, most=2**32 - 1)
    return options, texts


# What a signal handler raised while C waited, usually KeyboardInterrupt; by thread.
_interrupts: dict[int, BaseException] = {}


def _interrupted(_context: Any) -> int:
    """Let C go on waiting. C calls this now and then, and Python runs signal handlers before it."""
    return 0


def _keep_interrupt(_kind: Any, error: BaseException, _traceback: Any) -> None:
    _interrupts[threading.get_ident()] = error


ffi.def_extern("rdt_python_interrupted", error=1, onerror=_keep_interrupt)(_interrupted)


def operation_error(status: int) -> RdmaError:
    """Return what error_from returns, but a UsageError for PROTOCOL: here the members disagree."""
    error = error_from(status)
    return UsageError(str(error), error.status) if error.status == "PROTOCOL" else error


def failure(status: int) -> BaseException:
    """Return the exception for a status that a call of this thread just returned."""
    interrupt = _interrupts.pop(threading.get_ident(), None)
    return interrupt or operation_error(status)
