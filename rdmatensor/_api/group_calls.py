# SPDX-License-Identifier: Apache-2.0
"""How one member's calls of a group's operations run: on the caller's thread, or started."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from .._ffi import ffi, lib
from ..errors import Closed, UsageError, check
from .arguments import c_text
from .buffers import Array, from_buffer, shared
from .collective import (
    BYTES,
    TAG_STARTED,
    Parts,
    checked_member,
    checked_tag,
    failure,
    known,
    new_call,
    operation_error,
    result_of,
    set_parts,
    unusable,
)
from .copies import Copies, Staged
from .transfer import Transfer, drop_complete
from .wait import milliseconds

if TYPE_CHECKING:
    from ..device import Device
    from .training import Costs

# A call's handle and arguments; and the key of calls that can reuse them.
_Slot = tuple[Any, Any]
_Key = tuple[str, "np.dtype[Any]", str, str, int]

_group_run = lib.rdt_python_run
_ndarray = np.ndarray
_NOTHING = np.empty(0, np.uint8)
_PAIRS = ("send", "receive")
# In the second half of the tags of started sends and receives, which names them here.
_PAIR = 1 << 62
_LONGEST_END = 5.0  # seconds in which cancelled calls of other threads return


class Operation(Transfer):
    """An operation that Group.start began: a Transfer whose result is the array that it writes.

    Do not touch the arrays until it is complete. The group keeps them alive. Any thread may use it.
    """

    __slots__ = ("_calls", "_out", "_report", "_tag")
    _failure = staticmethod(operation_error)

    def __init__(
        self,
        calls: GroupCalls,
        started: int,
        keep: Any,
        tag: tuple[int, int],
        out: Any,
        report: Any,
        back: Callable[[], None] | None,
    ) -> None:
        # `started` is the address of C's transfer, or 0 for what is complete, whose maker calls _settle(0).
        transfer = ffi.cast("rdt_transfer *", started)
        super().__init__(
            ffi.gc(transfer, lib.rdt_transfer_free) if started else transfer, keep, back
        )
        self._calls = calls
        self._tag = tag
        self._out: Array = out
        self._report = report

    @property
    def source(self) -> int | None:
        """The rank of the member that sent what a receive has received; None if it is not complete."""
        return int(self._report.last) if self._report is not None and self.done() else None

    def result(self, timeout: float | None = None) -> Array:
        """Wait as wait() does, and return the array that the operation has written."""
        self.wait(timeout)
        return self._out

    def cancel(self) -> None:
        """End the operation with Cancelled, here and at the other members, unless it is complete."""
        if not self.done():
            self._calls.cancel(self._tag)


class _Counted(Operation):
    """An operation of whose end `end` is told, whenever somebody sees it, and whether it failed."""

    __slots__ = ("end",)
    end: Any

    def _settle(self, status: int) -> bool:
        settled = super()._settle(status)
        if settled:
            self.end(self._error is not None)
        return settled


class GroupCalls:
    """The calls of member `rank` of a group of C's, which it owns. Any thread may use it.

    `text` names the group in errors.
    """

    def __init__(self, device: Device, handle: Any, rank: int, size: int, text: str) -> None:
        self.lock = threading.Lock()
        self.copies = Copies()
        self.costs: Costs | None = None
        """The counters of operations; None until statistics are asked for."""
        self._device = device
        self._handle: Any = handle
        self._rank, self._size, self._text = rank, size, text
        # Prepared calls for reuse, by what they have in common. Each holds the handle. Calls that were
        # made and are not in these lists are running.
        self._slots: dict[_Key, list[_Slot]] = {}
        self._made = 0
        # Operations so far: those that are matched by the order in which they start, and messages, which are
        # not.
        self._started = self._messages = 0
        self.in_order = False
        """Whether operations that the caller waits for have one order with those that are started: one member
        may start what another waits for."""
        # Operations whose arrays C still uses, oldest first.
        self._pending: deque[Operation] = deque()

    @property
    def closed(self) -> bool:
        """Whether the group is closed."""
        return self._handle is None

    def handle(self) -> Any:
        """Return C's group. Raises Closed, or UsageError after fork."""
        if self._handle is None:
            if self._device._forked:
                raise UsageError(
                    f"{self._text} was joined before fork: join one in this process", "FORKED"
                )
            raise Closed(f"{self._text} is closed")
        return self._handle

    def run(
        self,
        kind: str,
        array: Any,
        out: Any = None,
        timeout: float | None = None,
        tag: int | None = None,
        detail: str | None = None,
        *,
        op: str = "sum",
        algorithm: str = "auto",
        root: int = 0,
        parts: Parts | None = None,
        factor: float | None = None,
        report: Any = None,
    ) -> Any:
        """Run an operation, and return its result, which is None where this member has none."""
        staged, array, out = self._on_host(array, out)
        array, result = self._places(kind, array, out, root, parts)
        to_device = None if staged is None else staged.back(result)

        numbers = self.in_order and tag is None and kind not in _PAIRS
        runs = _group_run if self.costs is None else self.costs.run

        def go(handle: Any, call: Any, local: Any, target: Any, count: int, back: Any) -> None:
            if numbers:
                with self.lock:
                    call.tag = self._number(kind, None)
            try:
                status = runs(handle, call, local, target, count)
            finally:
                if numbers:
                    call.tag = (0, 0)
            if status:
                raise failure(status)
            if back is not None:
                back()

        self._make(
            go,
            kind,
            array,
            result,
            timeout,
            tag,
            detail,
            op,
            algorithm,
            root,
            parts,
            factor,
            report,
        )
        if to_device is not None:
            to_device()
        return result if staged is None else staged.original(result)

    def start(
        self,
        kind: str,
        array: Any,
        out: Any,
        timeout: float | None,
        tag: int | None,
        detail: str | None,
        *,
        op: str,
        algorithm: str,
        root: int,
        parts: Parts | None,
        factor: float | None,
    ) -> Operation:
        """Start an operation. It keeps the arrays alive."""
        staged, array, out = self._on_host(array, out)
        array, out = self._places(kind, array, out, root, parts)
        result = out if staged is None else staged.original(out)
        to_device = None if staged is None else staged.back(out)
        report = ffi.new("rdt_collective_report *") if kind == "receive" else None

        def go(
            _handle: Any, call: Any, local: Any, target: Any, count: int, back: Any
        ) -> Operation:
            call.input, call.output, call.count = local, target, count
            end = None if self.costs is None else self.costs.begin(call, local, target)
            with self.lock:
                halves = self._number(kind, tag)
                try:
                    call.tag = halves
                    started = lib.rdt_python_start(self.handle(), call)
                finally:
                    call.tag, call.report = (0, 0), ffi.NULL
                if started < 0:
                    error = failure(started)
                    if end is not None:
                        end(True)
                    raise error
                made = Operation if end is None else _Counted
                operation = made(
                    self, started, (local, target), halves, result, report, to_device or back
                )
                if isinstance(operation, _Counted):
                    operation.end = end
                if started:
                    self._pending.append(operation)
            if not started:
                operation._settle(0)
            return operation

        operation: Operation = self._make(
            go, kind, array, out, timeout, None, detail, op, algorithm, root, parts, factor, report
        )
        drop_complete(self._pending)
        return operation

    def start_message(
        self,
        receives: bool,
        memory: Any,
        count: int,
        code: int,
        root: int | None,
        tag: int,
        timeout: float,
        keep: Any,
    ) -> Operation:
        """Start to send, or receive, `count` elements at `memory`, which `keep` keeps alive.

        `code` is C's number for their dtype. It does what start() does, in a third of the time.
        """
        report = ffi.new("rdt_collective_report *") if receives else ffi.NULL
        limit, member = milliseconds(timeout), checked_member("root", root)
        with self.lock:
            halves = self._number("receive", tag)
            started = lib.rdt_python_message(
                self.handle(), receives, code, member, memory, count, limit, *halves, report
            )
            if started < 0:
                raise failure(started)
            operation = Operation(self, started, keep, halves, None, report or None, None)
            if started:
                self._pending.append(operation)
        if not started:
            operation._settle(0)
        drop_complete(self._pending)
        return operation

    def _make(
        self,
        go: Callable[..., Any],
        kind: str,
        array: Any,
        out: Any,
        timeout: float | None,
        tag: int | None,
        detail: str | None,
        op: str,
        algorithm: str,
        root: int,
        parts: Parts | None,
        factor: float | None,
        report: Any,
    ) -> Any:
        """Prepare a call, and return what `go` does with it. C has copied what it points to then."""
        source, into, back = self.copies.pair(*_shared(array, out))
        given = whole_array = source if source is not None else into
        unit = 1
        try:
            free = self._slots[kind, given.dtype, op, algorithm, root]
            slot = free.pop()
        except (AttributeError, IndexError, KeyError, TypeError):
            given, source, into, detail, unit = known(kind, source, into, detail)
            free, slot = self._new_slot(kind, given, op, algorithm, root)
        handle, call = slot
        count = given.size
        special = parts is not None or factor is not None or op == "scaled_sum" or source is None
        try:
            local, target = _memory(source, into)
            if special:
                call.count = count
                row = _row_of(whole_array) * unit
                keep = self._set_more(call, kind, source, parts, row, factor)  # noqa: F841
                call.report = ffi.NULL if report is None else report
                count = call.count
            if timeout is not None:
                call.timeout_ms = milliseconds(timeout)
            if tag is not None:
                call.tag = (checked_tag(tag)[0], 0) if kind in _PAIRS else checked_tag(tag)
            if detail is not None:
                call.detail = text = c_text("detail", detail)  # noqa: F841
            return go(handle, call, local, target, count, back)
        finally:
            if timeout is not None or tag is not None:
                call.timeout_ms, call.tag = lib.RDT_TIMEOUT_DEFAULT, (0, 0)
            if detail is not None:
                call.detail = ffi.NULL
            if special:
                call.counts = call.receive_counts = call.report = ffi.NULL
            free.append(slot)

    def cancel(self, tag: tuple[int, int] | None) -> None:
        """Cancel the operation with this tag, or all."""
        halves = ffi.NULL if tag is None else ffi.new("uint64_t[2]", tag)
        with self.lock:
            if self._handle is not None:
                check(lib.rdt_group_cancel(self._handle, halves))

    def abort(self, text: str) -> None:
        """End the group at every member: what runs or starts later raises ConnectionLost with this text."""
        with self.lock:
            if self._handle is not None:
                check(lib.rdt_group_abort(self._handle, lib.RDT_ERR_CONNECTION_LOST, text.encode()))

    def close(self) -> bool:
        """End running operations, and close C's group. Returns False if it was closed."""
        with self.lock:
            handle, self._handle = self._handle, None
            slots, self._slots = self._slots, {}
        if handle is None:
            return False
        # Calls of other threads use the handle, or are about to.
        end = time.monotonic() + _LONGEST_END
        while self._made > sum(map(len, slots.values())) and time.monotonic() < end:
            lib.rdt_group_cancel(handle, ffi.NULL)
            time.sleep(0.001)
        lib.rdt_group_close(handle)
        self._pending.clear()
        return True

    def forget(self) -> None:
        """Give up everything after fork: it belongs to the parent process."""
        self.lock = threading.Lock()
        self._handle, self._slots = None, {}
        for operation in self._pending:
            ffi.gc(operation._handle, None)

    def _on_host(self, array: Any, out: Any) -> tuple[Staged | None, Any, Any]:
        """Return the arrays of an operation, or copies of those in CUDA memory and what puts results back."""
        if array.__class__ is _ndarray and (out is None or out.__class__ is _ndarray):
            return None, array, out
        staged = self.copies.staged(array, out)
        return (None, array, out) if staged is None else (staged, staged.array, staged.out)

    def _places(
        self, kind: str, array: Any, out: Any, root: int, parts: Parts | None
    ) -> tuple[Any, Any]:
        """Return what this member's call reads, and where its result goes; None if it has none."""
        if kind == "broadcast" or (kind == "all_reduce" and out is array):
            places = array, array
        elif kind == "barrier":
            places = _NOTHING, _NOTHING
        elif kind in _PAIRS:
            places = (array, None) if kind == "send" else (None, array)
        elif kind in ("gather", "reduce") and self._rank != root:
            places = array, None
        else:
            given = None if kind == "scatter" and self._rank != root else array
            return given, result_of(kind, given, out, self._size, parts, self._rank)
        if array is None and kind != "barrier":
            raise UsageError(f"{kind} needs a numpy array, and got None")
        return places

    def _number(self, kind: str, tag: int | None) -> tuple[int, int]:
        """Return the tag of a started operation for C. Call it under the lock."""
        if kind in _PAIRS:
            self._messages += 1
            return checked_tag(tag or 0)[0], _PAIR | self._messages
        if tag is not None:
            return checked_tag(tag)
        self._started += 1
        return self._started, TAG_STARTED

    def _set_more(
        self, call: Any, kind: str, array: Any, parts: Parts | None, row: int, factor: float | None
    ) -> Any:
        """Fill in what few operations have. Return what must live until C has copied it."""
        if (factor is not None) != (call.op == lib.RDT_SCALED_SUM):
            raise UsageError("a scaled_sum needs a factor, and nothing else has one")
        call.factor = factor or 0.0
        if kind == "scatter" and array is None:
            call.count = call.count * self._size if parts is None else sum(parts.counts) * row
        return None if parts is None else set_parts(call, parts, row)

    def _new_slot(
        self, kind: str, array: Array, op: str, algorithm: str, root: int
    ) -> tuple[list[_Slot], _Slot]:
        call = new_call(kind, array, op, algorithm, root)
        with self.lock:
            slot = self.handle(), call
            free = self._slots.setdefault((kind, array.dtype, op, algorithm, root), [])
            if free:  # of arrays whose bytes are moved
                return free, free.pop()
            self._made += 1
            return free, slot


def _shared(array: Any, out: Any) -> tuple[Any, Any]:
    """Return the memory of an operation's arrays, which may be tensors of another library."""
    local = shared(array)
    return local, local if out is array else shared(out)


def _memory(source: Any, into: Any) -> tuple[Any, Any]:
    """Return the bytes that C reads and writes. Raises UsageError if they cannot be used."""
    try:
        target = ffi.NULL if into is None else from_buffer(BYTES, into, True)
        if source is into:
            return target, target
        return ffi.NULL if source is None else from_buffer(BYTES, source), target
    except (BufferError, TypeError, ValueError) as error:
        raise unusable(source, into, error) from None


def _row_of(array: Any) -> int:
    """Return the elements of each row of an array."""
    return math.prod(array.shape[1:])
