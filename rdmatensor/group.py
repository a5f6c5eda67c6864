# SPDX-License-Identifier: Apache-2.0
"""Collective operations among devices, such as all-reduce, all-gather and broadcast."""

from __future__ import annotations

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
    Tree,
    checked_tag,
    failure,
    join_options,
    known,
    new_call,
    number,
    operation_error,
    result_of,
    tree_rows,
    unusable,
)
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
    staged because an array lies in no region.
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

    __slots__ = ("_group", "_out", "_tag")
    _failure = staticmethod(operation_error)

    def __init__(
        self, group: Group, handle: Any, keep: Any, tag: tuple[int, int], out: Any
    ) -> None:
        super().__init__(ffi.gc(handle, lib.rdt_transfer_free), keep)
        self._group = group
        self._tag = tag
        self._out: Array = out

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

    Reductions add up, here and in rdmatensor.train, unless `op` says otherwise; "mean" needs floats.

    Arrays are C-contiguous numpy arrays, or such tensors of another library on the host, by DLPack.
    Reductions take floats, bfloat16 (from ml_dtypes) and integers; operations that only move data take any
    dtype. Arrays in a region of the device with READ and WRITE access, such as those from empty(), move
    without a copy. The result goes into `out`: a new array (None), `array` itself, or an array that does not
    overlap it.

    A failed operation fails at every member where it is under way: with UsageError if members disagree,
    DeadlineExceeded if it is not complete after `timeout` seconds, Cancelled, or ConnectionLost if a member
    is gone. If members disagree and it was complete at one, the next operation fails with UsageError. After
    the error nobody touches its arrays; their contents are undefined. The group stays usable unless a member
    is gone.

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
        self.rank = int(options.rank)
        self.size = int(options.size)
        self.name = name
        self._device = device
        self._lock = threading.Lock()
        # Prepared calls for reuse, by what they have in common. Each holds the handle. Calls that were
        # made and are not in these lists are running.
        self._slots: dict[_Key, list[_Slot]] = {}
        self._made = 0
        self._started = 0
        # Operations whose arrays C still uses, oldest first.
        self._pending: deque[Operation] = deque()
        self._handle: Any = None
        with device._call() as handle:
            check(lib.rdt_group_create(handle, options, out))
            self._handle = out[0]
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

    def all_reduce(
        self,
        array: Array | SupportsDLPack,
        out: Array | SupportsDLPack | None = None,
        op: Op = "sum",
        algorithm: Algorithm = "auto",
        timeout: float | None = None,
        tag: int | None = None,
        detail: str | None = None,
    ) -> Array:
        """Combine all members' arrays by `op`, element by element, with the same bits at each member."""
        same = cast("Array", array)
        result: Array = same if out is array else result_of("all_reduce", array, out, self.size)
        self._run("all_reduce", array, result, op, algorithm, 0, timeout, tag, detail)
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
    ) -> Array:
        """Return part `rank` of what all_reduce gives, cut into `size` equal parts along the first axis."""
        result: Array = result_of("reduce_scatter", array, out, self.size)
        self._run("reduce_scatter", array, result, op, algorithm, 0, timeout, tag, detail)
        return result

    def all_gather(
        self,
        array: Array | SupportsDLPack,
        out: Array | SupportsDLPack | None = None,
        algorithm: Algorithm = "auto",
        timeout: float | None = None,
        tag: int | None = None,
        detail: str | None = None,
    ) -> Array:
        """Join all members' arrays along the first axis, in the order of their ranks.

        `array` may be this member's part of `out`.
        """
        result: Array = result_of("all_gather", array, out, self.size)
        self._run("all_gather", array, result, "sum", algorithm, 0, timeout, tag, detail)
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
    ) -> Array:
        """Join part `rank` of every member's array, in the order of their ranks.

        Arrays are cut as in reduce_scatter. `out` must not be `array`.
        """
        result: Array = result_of("all_to_all", array, out, self.size)
        self._run("all_to_all", array, result, "sum", algorithm, 0, timeout, tag, detail)
        return result

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
        root: int = 0,
        timeout: float | None = None,
        tag: int | None = None,
        detail: str | None = None,
    ) -> Operation:
        """Start the operation that the method of this name runs, and return at once.

        Started operations run at the same time. Without tags they are matched in the order in which each
        member starts them; other calls in between do not matter.
        """
        if kind == "barrier":
            array = out = _NOTHING
        elif array is None:
            raise UsageError(f"{kind} needs an array")
        elif out is not array:
            out = array if kind == "broadcast" else result_of(kind, array, out, self.size)
        array, into, detail = known(kind, *_arrays(array, out), detail)
        call = new_call(kind, array, op, algorithm, root)
        try:
            call.output = target = from_buffer(BYTES, into, True)
            call.input = source = from_buffer(BYTES, array)
        except (BufferError, TypeError, ValueError) as error:
            raise unusable(array, into, error) from None
        call.count = array.size
        call.timeout_ms = milliseconds(timeout)
        call.detail = text = ffi.NULL if detail is None else c_text("detail", detail)
        transfer = ffi.new("rdt_transfer **")
        with self._lock:
            if tag is None:
                self._started += 1
            call.tag = halves = (self._started, TAG_STARTED) if tag is None else checked_tag(tag)
            status = lib.rdt_group_submit(self._need_handle(), call, transfer)
            if status < 0:
                raise failure(status)
            del text  # C has copied it
            operation = Operation(self, transfer[0], (source, target), halves, out)
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
            int(info.copies),
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

    def _run(
        self,
        kind: str,
        array: Array | SupportsDLPack,
        out: Array | SupportsDLPack,
        op: str,
        algorithm: str,
        root: int,
        timeout: float | None,
        tag: int | None,
        detail: str | None,
    ) -> None:
        array, out = _arrays(array, out)
        try:
            free = self._slots[kind, array.dtype, op, algorithm, root]
            slot = free.pop()
        except (AttributeError, IndexError, KeyError, TypeError):
            array, out, detail = known(kind, array, out, detail)
            free, slot = self._new_slot(kind, array, op, algorithm, root)
        handle, call = slot
        try:
            try:
                target = from_buffer(BYTES, out, True)
                source = target if array is out else from_buffer(BYTES, array)
            except (BufferError, TypeError, ValueError) as error:
                raise unusable(array, out, error) from None
            if timeout is not None:
                call.timeout_ms = milliseconds(timeout)
            if tag is not None:
                call.tag = checked_tag(tag)
            if detail is not None:
                call.detail = text = c_text("detail", detail)  # noqa: F841
            status = _group_run(handle, call, source, target, array.size)
            if status:
                raise failure(status)
        finally:
            if timeout is not None or tag is not None:
                call.timeout_ms, call.tag = lib.RDT_TIMEOUT_DEFAULT, (0, 0)
            if detail is not None:
                call.detail = ffi.NULL
            free.append(slot)

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


def _arrays(array: Array | SupportsDLPack, out: Array | SupportsDLPack) -> tuple[Array, Array]:
    """Return the memory of an operation's arrays, which may be tensors of another library."""
    local = shared(array)
    return local, local if out is array else shared(out)


# A call's handle and arguments; and the key of calls that can reuse them.
_Slot = tuple[Any, Any]
_Key = tuple[str, "np.dtype[Any]", str, str, int]

_group_run = lib.rdt_python_run
_NOTHING = np.empty(0, np.uint8)
_LONGEST_END = 5.0  # seconds in which cancelled calls of other threads return
