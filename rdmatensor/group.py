# SPDX-License-Identifier: Apache-2.0
"""Collective operations among devices, such as all-reduce, all-gather and broadcast."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from ._api import buffers
from ._api.arguments import c_text, whole
from ._api.buffers import Array, Shape, SupportsDLPack, from_buffer, shared
from ._api.collective import (
    ALGORITHMS,
    BYTES,
    KINDS,
    TAG_STARTED,
    Algorithm,
    Kind,
    Op,
    Parts,
    Tree,
    checked_member,
    checked_tag,
    failure,
    join_options,
    known,
    new_call,
    number,
    operation_error,
    parts_of,
    result_of,
    set_parts,
    tree_rows,
    unusable,
)
from ._api.copies import Copies, CopyBack
from ._api.event_loop import awaitable
from ._api.transfer import Transfer, drop_complete
from ._api.wait import milliseconds
from ._ffi import ffi, lib
from .errors import Closed, UsageError, _text, check

if TYPE_CHECKING:
    from .device import Device


class GroupInfo(NamedTuple):
    """What a group measured when it was joined, and what this member has done since.

    `latency_ns` is the time of a message and `byte_ns` the time of each of its bytes, in nanoseconds: first
    inside a host, then between hosts (0 if no members are so placed). `reduce_byte_ns` is the time of a
    reduction for each byte of one operand. `operations` counts completed operations and `bytes` the bytes
    sent, by algorithm; "" stands for kinds that have one algorithm only. `copies` counts bytes that were
    staged because an array lies in no region, or is strided.
    """

    name: str
    rank: int
    size: int
    hosts: int
    latency_ns: tuple[float, float]
    byte_ns: tuple[float, float]
    reduce_byte_ns: float
    operations: dict[str, int]
    bytes: dict[str, int]
    copies: int


class Operation(Transfer):
    """An operation that Group.start began: a Transfer whose result is the array that it writes.

    Do not touch the arrays until it is complete. The group keeps them alive. Any thread may use it.
    """

    __slots__ = ("_group", "_out", "_report", "_tag")
    _failure = staticmethod(operation_error)

    def __init__(
        self,
        group: Group,
        handle: Any,
        keep: Any,
        tag: tuple[int, int],
        out: Any,
        report: Any,
        back: CopyBack | None,
    ) -> None:
        super().__init__(ffi.gc(handle, lib.rdt_transfer_free), keep, back)
        self._group = group
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
            self._group._cancel(self._tag)


class Group:
    """A group of `size` devices, in which `device` has the number `rank`. Blocks until all have joined.

    Members meet at rank 0: `root` is the address of its device; rank 0 itself may omit it. `expect` is the
    name that its device must have, as for Device.connect(). `name` is at most 63 bytes long, the same for
    all members, and unique among their groups. Raises DeadlineExceeded, which names the missing ranks, after
    `timeout` seconds (None: the setting DEADLINE_MS), and ConnectionRefused if another device is at `root`,
    or if two members claim one rank or differ in size or settings.

    Every member calls the same methods with the same dtypes, counts and arguments, in the same order. Calls
    with a `tag` may come in any order and from several threads; a tag is a number from 0 to 2**63 - 1 that
    no other unfinished operation has. `detail` is a text that must be equal at all members, such as
    str(array.shape). If it differs, the operation fails, and the error quotes the first line that differs.

    Reductions add up, here and in rdmatensor.train, unless `op` says otherwise; "mean" and "scaled_sum"
    need floats, "and", "or" and "xor" integers. "scaled_sum" multiplies the sum by `factor`, which is the
    same at all members.

    Where members have unequal parts, `counts` has the length of each one's part along the first axis. It is
    the same at all members.

    send() and receive() concern two members only, and come in any order with regard to other calls.

    Arrays are C-contiguous numpy arrays, or such tensors of another library on the host, by DLPack. Strided
    ones of up to 64 KiB are copied, and their results copied back.
    Reductions take floats, bfloat16 (from ml_dtypes) and integers; operations that only move data take any
    dtype. Arrays in a region of the device with READ and WRITE access, such as those from empty(), move
    without a copy. The result goes into `out`: a new array (None), `array` itself, or an array that does not
    overlap it.

    A failed operation fails at every member where it is under way: with UsageError if members disagree,
    DeadlineExceeded if it is not complete after `timeout` seconds, Cancelled, or ConnectionLost if a member
    is gone. If members disagree and it was complete at one, the next operation fails with UsageError. After
    the error nobody touches its arrays; their contents are undefined. The group stays usable unless a member
    is gone; then send() and receive() still work between the others.

    Any thread may use the group. It lives until close(), or until the device is closed.
    """

    def __init__(
        self,
        device: Device,
        rank: int,
        size: int,
        root: str | None = None,
        name: str = "world",
        timeout: float | None = None,
        expect: str | None = None,
    ) -> None:
        out = ffi.new("rdt_group **")
        options, _texts = join_options(rank, size, root, name, timeout, expect)
        with device._call() as handle:
            check(lib.rdt_group_create(handle, options, out))
            self._begin(device, out[0], int(options.rank), int(options.size), name)

    def _begin(self, device: Device, handle: Any, rank: int, size: int, name: str) -> None:
        self.rank = rank
        self.size = size
        self.name = name
        self._device = device
        self._lock = threading.Lock()
        # Prepared calls for reuse, by what they have in common. Each holds the handle. Calls that were
        # made and are not in these lists are running.
        self._slots: dict[_Key, list[_Slot]] = {}
        self._made = 0
        # Started operations so far: those that are matched by their order, and messages, which are not.
        self._started = self._messages = 0
        self._copies = Copies()
        # Operations whose arrays C still uses, oldest first.
        self._pending: deque[Operation] = deque()
        self._handle: Any = handle
        device._groups.add(self)

    @classmethod
    async def ajoin(
        cls,
        device: Device,
        rank: int,
        size: int,
        root: str | None = None,
        name: str = "world",
        timeout: float | None = None,
        expect: str | None = None,
    ) -> Group:
        """Join a group, for asyncio. Await its operations by means of start()."""
        return await awaitable(cls, cls.close)(device, rank, size, root, name, timeout, expect)

    @classmethod
    def _of(cls, device: Device, handle: Any, rank: int, size: int, name: str) -> Group:
        """Return the object for a group of C's, which it owns. The caller has the device's handle."""
        group = cls.__new__(cls)
        group._begin(device, handle, rank, size, name)
        return group

    def split(self, ranks: Sequence[int], name: str, timeout: float | None = None) -> Group:
        """Make a group of some members of this one, over the same connections and without measuring.

        All members of the new group call it, with the same ranks of this group, in the order of their ranks
        in the new one, and the same name. It takes microseconds. The new group lives on when this one is
        closed. Raises UsageError if they differ, and the errors of receive().
        """
        numbers = [whole("a rank", each, most=2**32 - 1) for each in ranks]
        out = ffi.new("rdt_group **")
        text = c_text("name", name)
        with self._device._call():
            limit = milliseconds(timeout)
            status = lib.rdt_group_split(
                self._need_handle(), text, ffi.new("uint32_t[]", numbers), len(numbers), limit, out
            )
            if status:
                raise failure(status)
            return Group._of(self._device, out[0], numbers.index(self.rank), len(numbers), name)

    def all_reduce(
        self,
        array: Array | SupportsDLPack,
        out: Array | SupportsDLPack | None = None,
        op: Op = "sum",
        algorithm: Algorithm = "auto",
        timeout: float | None = None,
        tag: int | None = None,
        detail: str | None = None,
        factor: float | None = None,
    ) -> Array:
        """Combine all members' arrays by `op`, element by element, with the same bits at each member."""
        same = cast("Array", array)
        result: Array = same if out is array else self._result("all_reduce", array, out)
        self._run("all_reduce", array, result, op, algorithm, 0, timeout, tag, detail, None, factor)
        return result

    def reduce_scatter(
        self,
        array: Array | SupportsDLPack,
        out: Array | SupportsDLPack | None = None,
        op: Op = "sum",
        algorithm: Algorithm = "auto",
        timeout: float | None = None,
        tag: int | None = None,
        detail: str | None = None,
        counts: Sequence[int] | None = None,
        factor: float | None = None,
    ) -> Array:
        """Return part `rank` of what all_reduce gives, cut into `size` parts along the first axis."""
        parts = parts_of("reduce_scatter", counts, None, self.size)
        result: Array = self._result("reduce_scatter", array, out, parts)
        self._run(
            "reduce_scatter", array, result, op, algorithm, 0, timeout, tag, detail, parts, factor
        )
        return result

    def all_gather(
        self,
        array: Array | SupportsDLPack,
        out: Array | SupportsDLPack | None = None,
        algorithm: Algorithm = "auto",
        timeout: float | None = None,
        tag: int | None = None,
        detail: str | None = None,
        counts: Sequence[int] | None = None,
    ) -> Array:
        """Join all members' arrays along the first axis, in the order of their ranks.

        `array` may be this member's part of `out`.
        """
        parts = parts_of("all_gather", counts, None, self.size)
        result: Array = self._result("all_gather", array, out, parts)
        self._run("all_gather", array, result, "sum", algorithm, 0, timeout, tag, detail, parts)
        return result

    def broadcast(
        self,
        array: Array | SupportsDLPack,
        root: int = 0,
        algorithm: Algorithm = "auto",
        timeout: float | None = None,
        tag: int | None = None,
        detail: str | None = None,
    ) -> Array:
        """Copy rank `root`'s `array` into the `array` of all other members, and return it."""
        self._run("broadcast", array, array, "sum", algorithm, root, timeout, tag, detail)
        return cast("Array", array)

    def all_to_all(
        self,
        array: Array | SupportsDLPack,
        out: Array | SupportsDLPack | None = None,
        algorithm: Algorithm = "auto",
        timeout: float | None = None,
        tag: int | None = None,
        detail: str | None = None,
        counts: Sequence[int] | None = None,
        receive_counts: Sequence[int] | None = None,
    ) -> Array:
        """Join part `rank` of every member's array, in the order of their ranks.

        Arrays are cut as in reduce_scatter. `out` must not be `array`. With unequal parts, `counts` has what
        this member sends to each, and `receive_counts` what it receives from each.
        """
        parts = parts_of("all_to_all", counts, receive_counts, self.size)
        result: Array = self._result("all_to_all", array, out, parts)
        self._run("all_to_all", array, result, "sum", algorithm, 0, timeout, tag, detail, parts)
        return result

    def gather(
        self,
        array: Array | SupportsDLPack,
        root: int = 0,
        out: Array | SupportsDLPack | None = None,
        timeout: float | None = None,
        tag: int | None = None,
        detail: str | None = None,
        counts: Sequence[int] | None = None,
    ) -> Array | None:
        """Join all members' arrays as all_gather does, at rank `root`. The others return None."""
        parts = parts_of("gather", counts, None, self.size)
        result: Array | None = self._result("gather", array, out, parts, root)
        self._run("gather", array, result, "sum", "auto", root, timeout, tag, detail, parts)
        return result

    def scatter(
        self,
        array: Array | SupportsDLPack | None = None,
        root: int = 0,
        out: Array | SupportsDLPack | None = None,
        timeout: float | None = None,
        tag: int | None = None,
        detail: str | None = None,
        counts: Sequence[int] | None = None,
    ) -> Array:
        """Return part `rank` of rank `root`'s array, which is cut as in reduce_scatter.

        The others pass `out`, and their `array` is not used. At the root, `out` may be its part of `array`.
        """
        parts = parts_of("scatter", counts, None, self.size)
        given = array if self.rank == root else None
        result: Array = self._result("scatter", given, out, parts, root)
        self._run("scatter", given, result, "sum", "auto", root, timeout, tag, detail, parts)
        return result

    def reduce(
        self,
        array: Array | SupportsDLPack,
        root: int = 0,
        out: Array | SupportsDLPack | None = None,
        op: Op = "sum",
        algorithm: Algorithm = "auto",
        timeout: float | None = None,
        tag: int | None = None,
        detail: str | None = None,
        factor: float | None = None,
    ) -> Array | None:
        """Combine all members' arrays as all_reduce does, at rank `root`. The others return None."""
        result: Array | None = self._result("reduce", array, out, None, root)
        self._run("reduce", array, result, op, algorithm, root, timeout, tag, detail, None, factor)
        return result

    def send(
        self,
        array: Array | SupportsDLPack,
        to: int,
        tag: int = 0,
        timeout: float | None = None,
        detail: str | None = None,
    ) -> None:
        """Send an array to rank `to`, which receives it with the same dtype and number of elements.

        What one member sends to another with one tag, from 0 to 2**63 - 1, is received in the order in which
        it was sent. A short array may have been sent before it is received.
        """
        to = checked_member("to", to)
        self._run("send", array, None, "sum", "auto", to, timeout, tag, detail)

    def receive(
        self,
        array: Array | SupportsDLPack,
        source: int | None = None,
        tag: int = 0,
        timeout: float | None = None,
        detail: str | None = None,
    ) -> int:
        """Fill an array with what rank `source` sent with this tag. Return the rank that sent it.

        Without a source, take what any member sent first.
        """
        root, report = checked_member("source", source), ffi.new("rdt_collective_report *")
        self._run("receive", None, array, "sum", "auto", root, timeout, tag, detail, report=report)
        return int(report.last)

    def barrier(
        self, timeout: float | None = None, tag: int | None = None, detail: str | None = None
    ) -> None:
        """Return when every member has called it."""
        self._run("barrier", _NOTHING, _NOTHING, "sum", "auto", 0, timeout, tag, detail)

    def start(
        self,
        kind: Kind,
        array: Array | SupportsDLPack | None = None,
        out: Array | SupportsDLPack | None = None,
        *,
        op: Op = "sum",
        algorithm: Algorithm = "auto",
        root: int | None = 0,
        timeout: float | None = None,
        tag: int | None = None,
        detail: str | None = None,
        counts: Sequence[int] | None = None,
        receive_counts: Sequence[int] | None = None,
        factor: float | None = None,
    ) -> Operation:
        """Start the operation that the method of this name runs, and return at once.

        Started operations run at the same time. Without tags they are matched in the order in which each
        member starts them; other calls in between do not matter. In a "send", `root` is the rank that
        receives; in a "receive", the one that sends (None: any), and `array` is filled.
        """
        parts = parts_of(kind, counts, receive_counts, self.size)
        root = checked_member("root", root)
        pair = kind in _PAIRS
        if kind == "barrier":
            array = out = _NOTHING
        elif array is None and kind != "scatter":
            raise UsageError(f"{kind} needs an array")
        elif pair:
            array, out = (array, None) if kind == "send" else (None, array)
        elif kind == "scatter" and self.rank != root:
            array, out = None, self._result(kind, None, out, parts, root)
        elif out is not array or kind in ("gather", "reduce"):
            out = array if kind == "broadcast" else self._result(kind, array, out, parts, root)
        source, into, back = self._copies.pair(*_arrays(array, out))
        row = _row_of(source if source is not None else into)
        given, source, into, detail, unit = known(kind, source, into, detail)
        call = new_call(kind, given, op, algorithm, root)
        try:
            call.output = target = ffi.NULL if into is None else from_buffer(BYTES, into, True)
            call.input = local = ffi.NULL if source is None else from_buffer(BYTES, source)
        except (BufferError, TypeError, ValueError) as error:
            raise unusable(source, into, error) from None
        call.count = given.size
        keep = self._set_more(call, kind, source, parts, row * unit, factor)
        call.timeout_ms = milliseconds(timeout)
        call.detail = text = ffi.NULL if detail is None else c_text("detail", detail)
        if kind == "receive":
            call.report = report = ffi.new("rdt_collective_report *")
        else:
            report = None
        transfer = ffi.new("rdt_transfer **")
        with self._lock:
            if pair:
                self._messages += 1
                halves = checked_tag(tag or 0)[0], _PAIR | self._messages
            elif tag is None:
                self._started += 1
                halves = self._started, TAG_STARTED
            else:
                halves = checked_tag(tag)
            call.tag = halves
            status = lib.rdt_group_submit(self._need_handle(), call, transfer)
            if status < 0:
                raise failure(status)
            del text, keep  # C has copied them
            operation = Operation(self, transfer[0], (local, target), halves, out, report, back)
            self._pending.append(operation)
        drop_complete(self._pending)
        return operation

    def cancel(self, tag: int | None = None) -> None:
        """End the operation with this tag with Cancelled, here and at the other members.

        If the operation is called later, it ends then. None ends all operations that are running here.
        """
        self._cancel(None if tag is None else checked_tag(tag))

    def empty(self, shape: Shape, dtype: npt.DTypeLike = np.float32) -> Array:
        """Return a zero-filled array that moves without a copy.

        The array has its own region. When the last view of the array is dropped, the region is closed and
        the memory is freed. Raises DeviceError if no memory is left or it cannot be registered.
        """
        dims, kind, nbytes = buffers.extent(shape, dtype)
        if not nbytes:
            return np.empty(dims, kind)
        return self._device._registered(nbytes).view(kind).reshape(dims)

    def choose(self, kind: Kind, nbytes: int) -> str:
        """Return the algorithm that "auto" takes for operations of this kind with `nbytes` of input."""
        out = ffi.new("rdt_algorithm *")
        nbytes = whole("nbytes", nbytes)
        with self._lock:
            check(
                lib.rdt_group_choose(self._need_handle(), number("kind", kind, KINDS), nbytes, out)
            )
        return _text(lib.rdt_algorithm_name(out[0]))

    def use_trees(
        self,
        trees: Sequence[Tree],
        pair_ns: Sequence[float] | None = None,
        timeout: float | None = None,
    ) -> None:
        """Replace the group's spanning trees for the algorithm "trees".

        Every member calls it with the same arguments, without other operations under way, and waits until
        all have. "auto" then takes trees where they are expected to be the fastest. `pair_ns` has the
        nanoseconds per byte from each member to each other one, row by row, 0 where no link leads; "auto"
        then expects of the other algorithms what these links permit. rdmatensor.topology.plan() finds both.
        Without a tree for an operation, "trees" is "ring". Raises UsageError if trees are malformed or
        differ among members, and the errors of barrier().
        """
        rows, keep = tree_rows(trees, self.size)
        costs = ffi.NULL if pair_ns is None else ffi.new("double[]", list(pair_ns))
        if pair_ns is not None and len(pair_ns) != self.size**2:
            raise UsageError(
                f"pair_ns has {len(pair_ns)} numbers: a group of {self.size} needs {self.size**2}"
            )
        limit = milliseconds(timeout)
        status = lib.rdt_group_use_trees(self._need_handle(), rows, len(trees), costs, limit)
        del keep
        if status:
            raise failure(status)

    @property
    def info(self) -> GroupInfo:
        """Costs and counters. Raises Closed once the group is closed."""
        info = ffi.new("rdt_group_info *")
        with self._lock:
            check(lib.rdt_group_get_info(self._need_handle(), info))
            name = _text(info.name)
        names = ["", *list(ALGORITHMS)[1:]]
        return GroupInfo(
            name,
            int(info.rank),
            int(info.size),
            int(info.hosts),
            tuple(info.latency_ns),
            tuple(info.byte_ns),
            float(info.reduce_byte_ns),
            dict(zip(names, info.operations, strict=True)),
            dict(zip(names, info.bytes, strict=True)),
            int(info.copies) + self._copies.nbytes,
        )

    @property
    def closed(self) -> bool:
        """Whether the group is closed."""
        return self._handle is None

    def _abort(self, text: str) -> None:
        """End the group at every member: what runs or starts later raises ConnectionLost with this text."""
        with self._lock:
            if self._handle is not None:
                check(lib.rdt_group_abort(self._handle, lib.RDT_ERR_CONNECTION_LOST, text.encode()))

    def close(self) -> None:
        """End running operations with Cancelled, here and at the other members. May be called again."""
        with self._lock:
            handle, self._handle = self._handle, None
            slots, self._slots = self._slots, {}
        if handle is None:
            return
        # Calls of other threads use the handle, or are about to.
        end = time.monotonic() + _LONGEST_END
        while self._made > sum(map(len, slots.values())) and time.monotonic() < end:
            lib.rdt_group_cancel(handle, ffi.NULL)
            time.sleep(0.001)
        lib.rdt_group_close(handle)
        self._pending.clear()
        self._device._groups.discard(self)

    def __enter__(self) -> Group:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Group {self.name!r}, rank {self.rank} of {self.size}>"

    def _result(
        self, kind: str, array: Any, out: Any, parts: Parts | None = None, root: int | None = None
    ) -> Any:
        """Return where this member's result goes; None if it has none."""
        if kind in ("gather", "reduce") and self.rank != root:
            return None
        return result_of(kind, array, out, self.size, parts, self.rank)

    def _run(
        self,
        kind: str,
        array: Array | SupportsDLPack | None,
        out: Array | SupportsDLPack | None,
        op: str,
        algorithm: str,
        root: int,
        timeout: float | None,
        tag: int | None,
        detail: str | None,
        parts: Parts | None = None,
        factor: float | None = None,
        report: Any = None,
    ) -> None:
        source, into, back = self._copies.pair(*_arrays(array, out))
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
            try:
                target = ffi.NULL if into is None else from_buffer(BYTES, into, True)
                if source is into:
                    local = target
                else:
                    local = ffi.NULL if source is None else from_buffer(BYTES, source)
            except (BufferError, TypeError, ValueError) as error:
                raise unusable(source, into, error) from None
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
            status = _group_run(handle, call, local, target, count)
            if status:
                raise failure(status)
            if back is not None:
                back()
        finally:
            if timeout is not None or tag is not None:
                call.timeout_ms, call.tag = lib.RDT_TIMEOUT_DEFAULT, (0, 0)
            if detail is not None:
                call.detail = ffi.NULL
            if special:
                call.counts = call.receive_counts = call.report = ffi.NULL
            free.append(slot)

    def _set_more(
        self, call: Any, kind: str, array: Any, parts: Parts | None, row: int, factor: float | None
    ) -> Any:
        """Fill in what few operations have. Return what must live until C has copied it."""
        if (factor is not None) != (call.op == lib.RDT_SCALED_SUM):
            raise UsageError("a scaled_sum needs a factor, and nothing else has one")
        call.factor = factor or 0.0
        if kind == "scatter" and array is None:
            call.count = call.count * self.size if parts is None else sum(parts.counts) * row
        return None if parts is None else set_parts(call, parts, row)

    def _new_slot(
        self, kind: str, array: Array, op: str, algorithm: str, root: int
    ) -> tuple[list[_Slot], _Slot]:
        call = new_call(kind, array, op, algorithm, root)
        with self._lock:
            slot = self._need_handle(), call
            free = self._slots.setdefault((kind, array.dtype, op, algorithm, root), [])
            if free:  # of arrays whose bytes are moved
                return free, free.pop()
            self._made += 1
            return free, slot

    def _need_handle(self) -> Any:
        if self._handle is None:
            if self._device._forked:
                raise UsageError(
                    f"{self!r} was joined before fork: join one in this process", "FORKED"
                )
            raise Closed(f"{self!r} is closed")
        return self._handle

    def _cancel(self, tag: tuple[int, int] | None) -> None:
        halves = ffi.NULL if tag is None else ffi.new("uint64_t[2]", tag)
        with self._lock:
            if self._handle is not None:
                check(lib.rdt_group_cancel(self._handle, halves))

    def _forget(self) -> None:
        """Give up everything after fork: it belongs to the parent process."""
        self._lock = threading.Lock()
        self._handle, self._slots = None, {}
        for operation in self._pending:
            ffi.gc(operation._handle, None)


def _arrays(array: Any, out: Any) -> tuple[Any, Any]:
    """Return the memory of an operation's arrays, which may be tensors of another library."""
    local = shared(array)
    return local, local if out is array else shared(out)


def _row_of(array: Any) -> int:
    """Return the elements of each row of an array."""
    return math.prod(array.shape[1:])


# A call's handle and arguments; and the key of calls that can reuse them.
_Slot = tuple[Any, Any]
_Key = tuple[str, "np.dtype[Any]", str, str, int]

_group_run = lib.rdt_python_run
_NOTHING = np.empty(0, np.uint8)
_PAIRS = ("send", "receive")
_PAIR = (
    1 << 62
)  # in the second half of the tags of started sends and receives, which names them here
_LONGEST_END = 5.0  # seconds in which cancelled calls of other threads return
