# SPDX-License-Identifier: Apache-2.0
"""Convert the arguments of collective operations for C, and their failures into exceptions."""

from __future__ import annotations

import math
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
ANY_MEMBER = 2**32 - 1

Op: TypeAlias = Literal["sum", "product", "min", "max", "mean", "and", "or", "xor", "scaled_sum"]
Algorithm: TypeAlias = Literal["auto", "flat", "halving", "ring", "direct", "hierarchical", "trees"]
Kind: TypeAlias = Literal[
    "all_reduce",
    "reduce_scatter",
    "all_gather",
    "broadcast",
    "all_to_all",
    "gather",
    "scatter",
    "reduce",
    "barrier",
    "send",
    "receive",
]

KINDS: dict[str, int] = {
    "all_reduce": lib.RDT_ALL_REDUCE,
    "reduce_scatter": lib.RDT_REDUCE_SCATTER,
    "all_gather": lib.RDT_ALL_GATHER,
    "broadcast": lib.RDT_BROADCAST,
    "all_to_all": lib.RDT_ALL_TO_ALL,
    "gather": lib.RDT_GATHER,
    "scatter": lib.RDT_SCATTER,
    "reduce": lib.RDT_REDUCE,
    "barrier": lib.RDT_BARRIER,
    "send": lib.RDT_SEND,
    "receive": lib.RDT_RECEIVE,
}
_OPS: dict[str, int] = {
    "sum": lib.RDT_SUM,
    "product": lib.RDT_PRODUCT,
    "min": lib.RDT_MIN,
    "max": lib.RDT_MAX,
    "mean": lib.RDT_MEAN,
    "and": lib.RDT_AND,
    "or": lib.RDT_OR,
    "xor": lib.RDT_XOR,
    "scaled_sum": lib.RDT_SCALED_SUM,
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


# Operations that combine elements. The others take arrays of any dtype, because they only move bytes.
_COMBINES = ("all_reduce", "reduce_scatter", "reduce")
# Operations whose array has the parts of all members along its first axis; and those whose result has.
_CUT = ("reduce_scatter", "all_to_all", "scatter")
_JOINED = ("all_gather", "gather")


def dtype_code(array: Array) -> int | None:
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
    if dtype_code(array) is not None:
        return
    dtype = array.dtype
    if dtype.hasobject:
        raise UsageError(f"dtype {dtype} holds Python objects, which have no bytes to send")
    if kind in _COMBINES or not dtype.itemsize:
        raise UsageError(
            f"arrays of dtype {dtype} cannot be combined: use one of {', '.join(_DTYPES)} in "
            "native byte order, or a view as one"
        )


def _none(kind: str) -> UsageError:
    return UsageError(f"{kind} needs a numpy array, and got None")


def known(
    kind: str, array: Array | None, out: Array | None, detail: str | None
) -> tuple[Array, Array | None, Array | None, str | None, int]:
    """Return the array that decides dtype and count, and both, as C knows them.

    They are the same, or their bytes, with the dtype in the detail. The last result is how many elements
    for C each of their elements has.
    """
    given = array if array is not None else out
    if given is None:
        raise _none(kind)
    if dtype_code(given) is not None:
        return given, array, out, detail, 1
    check_dtype(kind, given)
    for each in (array, out):
        if each is not None and not each.flags.c_contiguous:
            raise unusable(array, out, TypeError("not C-contiguous"))
    moved = given.reshape(-1).view(np.uint8)
    source = None if array is None else moved
    into = moved if out is given else None if out is None else out.reshape(-1).view(np.uint8)
    heading = f"dtype {given.dtype}" + ("" if detail is None else f"\n{detail}")
    return moved, source, into, heading, given.dtype.itemsize


class Parts(NamedTuple):
    """The lengths of members' parts along the first axis: those of the array, or of the result.

    In an all_to_all, `counts` has what this member sends to each, and `receive_counts` what it receives.
    """

    counts: tuple[int, ...]
    receive_counts: tuple[int, ...] | None = None


def _numbers(name: str, given: Sequence[int], members: int) -> tuple[int, ...]:
    if len(given) != members:
        raise UsageError(f"{name} has {len(given)} numbers: the group has {members} members")
    what = f"a number in {name}"
    return tuple([whole(what, each) for each in given])


def parts_of(
    kind: str, counts: Sequence[int] | None, receive_counts: Sequence[int] | None, members: int
) -> Parts | None:
    """Return the parts that a caller gave, or None if all are equal. Raises UsageError."""
    if counts is None and receive_counts is None:
        return None
    sent = None if counts is None else _numbers("counts", counts, members)
    received = (
        None if receive_counts is None else _numbers("receive_counts", receive_counts, members)
    )
    if sent is None or (kind == "all_to_all") != (received is not None):
        raise UsageError("an all_to_all of unequal parts needs both counts and receive_counts")
    return Parts(sent, received)


def new_call(kind: str, array: Array, op: str, algorithm: str, root: int) -> Any:
    """Return the arguments of an operation, without the arrays, their size and the tag."""
    call = ffi.new("rdt_collective *")
    call.struct_size = ffi.sizeof("rdt_collective")
    call.kind = number("kind", kind, KINDS)
    call.dtype = dtype_code(array)
    call.op = number("op", op, _OPS)
    call.algorithm = number("algorithm", algorithm, ALGORITHMS)
    call.timeout_ms = lib.RDT_TIMEOUT_DEFAULT
    call.stop = lib.rdt_python_interrupted
    call.root = whole("root", root, most=2**32 - 1)
    return call


def result_of(kind: str, array: Any, out: Any, members: int, parts: Parts | None, rank: int) -> Any:
    """Return `out` if it fits the result of an operation at member `rank`, or a new array if it is None.

    `array` may be None for a scatter at a member that is not the root; then `out` is needed.
    """
    if array is None:
        if kind != "scatter":
            raise _none(kind)
        if out is None:
            raise UsageError(f"{kind} needs out at members that are not the root")
        given = shared(out)
        check_dtype(kind, given)
        if parts is not None and given.shape[:1] != (parts.counts[rank],):
            raise UsageError(
                f"out has shape {given.shape}, this member has {parts.counts[rank]} rows"
            )
        return out
    array, given = shared(array), shared(out)
    check_dtype(kind, array)
    shape = _result_shape(kind, array.shape, members, parts, rank)
    if out is None:
        return np.empty(shape, array.dtype)
    check_dtype(kind, given)
    if given.dtype != array.dtype:
        raise UsageError(f"out has dtype {given.dtype}, array has {array.dtype}")
    size = math.prod(shape)
    if given.size != size:
        raise UsageError(f"out has {given.size} elements, the result of {kind} has {size}")
    return out


def _result_shape(
    kind: str, shape: tuple[int, ...], members: int, parts: Parts | None, rank: int
) -> tuple[int, ...]:
    if kind in _CUT:
        if shape == () or (parts is None and shape[0] % members):
            raise UsageError(
                f"{kind} cannot cut the first axis of shape {shape} into {members} parts"
            )
        if parts is not None and shape[0] != sum(parts.counts):
            raise UsageError(f"the array has {shape[0]} rows, the counts say {sum(parts.counts)}")
        if parts is not None:
            received = parts.receive_counts
            rows = parts.counts[rank] if received is None else sum(received)
        else:
            rows = shape[0] if kind == "all_to_all" else shape[0] // members
        return (rows, *shape[1:])
    if kind not in _JOINED:
        return shape
    if parts is None:
        return (members * shape[0], *shape[1:]) if shape else (members,)
    if shape[:1] != (parts.counts[rank],):
        raise UsageError(f"the array has shape {shape}, this member has {parts.counts[rank]} rows")
    return (sum(parts.counts), *shape[1:])


def set_parts(call: Any, parts: Parts, row: int) -> Any:
    """Give the call members' parts, whose rows have `row` elements. Return what must live as long."""
    arrays = [
        ffi.NULL if each is None else ffi.new("uint64_t[]", [count * row for count in each])
        for each in parts
    ]
    call.counts, call.receive_counts = arrays
    return arrays


def unusable(array: Array | None, out: Array | None, error: Exception) -> UsageError:
    """Return the error that says why the bytes of one of the arrays cannot be used."""
    good = array is None or array.flags.c_contiguous
    if good and out is not None and not out.flags.writeable:
        return UsageError("the array that the result goes into is read-only")
    return buffers.unusable(out if good else array, error)


def checked_member(what: str, member: int | None) -> int:
    """Return the number of another member for C, which has one for any (None)."""
    return ANY_MEMBER if member is None else whole(what, member, most=ANY_MEMBER - 1)


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
