# SPDX-License-Identifier: Apache-2.0
"""Collective operations among devices, such as all-reduce, all-gather and broadcast."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ._api import buffers
from ._api.arguments import c_text, whole
from ._api.buffers import Array, Shape, SupportsDLPack
from ._api.collective import (
    ALGORITHMS,
    KINDS,
    Algorithm,
    Kind,
    Op,
    Tree,
    checked_member,
    checked_tag,
    failure,
    join_options,
    number,
    parts_of,
    tree_rows,
)
from ._api.event_loop import awaitable
from ._api.group_calls import GroupCalls, Operation
from ._api.wait import milliseconds
from ._ffi import ffi, lib
from .errors import UsageError, _text, check

if TYPE_CHECKING:
    from .device import Device


class GroupInfo(NamedTuple):
    """What a group measured when it was joined, and what this member has done since.

    `latency_ns` is the time of a message and `byte_ns` the time of each of its bytes, in nanoseconds: first
    inside a host, then between hosts (0 if no members are so placed). `reduce_byte_ns` is the time of a
    reduction for each byte of one operand. `operations` counts completed operations and `bytes` the bytes
    sent, by algorithm; "" stands for kinds that have one algorithm only. `copies` counts bytes that were
    staged because an array lies in no region, is strided, or lies in CUDA memory.
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

    Arrays are C-contiguous numpy arrays, or such tensors of another library, by DLPack. Strided ones of up
    to 64 KiB, and those in CUDA memory, are copied, and their results copied back. Without `out`, a result is
    an array on the host.
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
        self._calls = GroupCalls(device, handle, rank, size, repr(self))
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
                self._calls.handle(), text, ffi.new("uint32_t[]", numbers), len(numbers), limit, out
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
        result: Array = self._calls.run(
            "all_reduce",
            array,
            out,
            timeout,
            tag,
            detail,
            op=op,
            algorithm=algorithm,
            factor=factor,
        )
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
        result: Array = self._calls.run(
            "reduce_scatter",
            array,
            out,
            timeout,
            tag,
            detail,
            op=op,
            algorithm=algorithm,
            parts=parts,
            factor=factor,
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
        result: Array = self._calls.run(
            "all_gather", array, out, timeout, tag, detail, algorithm=algorithm, parts=parts
        )
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
        result: Array = self._calls.run(
            "broadcast", array, array, timeout, tag, detail, algorithm=algorithm, root=root
        )
        return result

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

        Arrays are cut as in reduce_scatter. With unequal parts, `counts` has what this member sends to each,
        and `receive_counts` what it receives from each; `out` must not be `array` then.
        """
        parts = parts_of("all_to_all", counts, receive_counts, self.size)
        result: Array = self._calls.run(
            "all_to_all", array, out, timeout, tag, detail, algorithm=algorithm, parts=parts
        )
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
        result: Array | None = self._calls.run(
            "gather", array, out, timeout, tag, detail, root=root, parts=parts
        )
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
        result: Array = self._calls.run(
            "scatter", array, out, timeout, tag, detail, root=root, parts=parts
        )
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
        result: Array | None = self._calls.run(
            "reduce",
            array,
            out,
            timeout,
            tag,
            detail,
            op=op,
            algorithm=algorithm,
            root=root,
            factor=factor,
        )
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
        root = checked_member("to", to)
        self._calls.run("send", array, None, timeout, tag, detail, root=root)

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
        self._calls.run("receive", array, None, timeout, tag, detail, root=root, report=report)
        return int(report.last)

    def barrier(
        self, timeout: float | None = None, tag: int | None = None, detail: str | None = None
    ) -> None:
        """Return when every member has called it."""
        self._calls.run("barrier", None, None, timeout, tag, detail)

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
        return self._calls.start(
            kind,
            array,
            out,
            timeout,
            tag,
            detail,
            op=op,
            algorithm=algorithm,
            root=checked_member("root", root),
            parts=parts_of(kind, counts, receive_counts, self.size),
            factor=factor,
        )

    def cancel(self, tag: int | None = None) -> None:
        """End the operation with this tag with Cancelled, here and at the other members.

        If the operation is called later, it ends then. None ends all operations that are running here.
        """
        self._calls.cancel(None if tag is None else checked_tag(tag))

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
        with self._calls.lock:
            check(
                lib.rdt_group_choose(self._calls.handle(), number("kind", kind, KINDS), nbytes, out)
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
        status = lib.rdt_group_use_trees(self._calls.handle(), rows, len(trees), costs, limit)
        del keep
        if status:
            raise failure(status)

    @property
    def info(self) -> GroupInfo:
        """Costs and counters. Raises Closed once the group is closed."""
        info = ffi.new("rdt_group_info *")
        with self._calls.lock:
            check(lib.rdt_group_get_info(self._calls.handle(), info))
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
            int(info.copies) + self._calls.copies.nbytes,
        )

    @property
    def closed(self) -> bool:
        """Whether the group is closed."""
        return self._calls.closed

    def close(self) -> None:
        """End running operations with Cancelled, here and at the other members. May be called again."""
        if self._calls.close():
            self._device._groups.discard(self)

    def __enter__(self) -> Group:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Group {self.name!r}, rank {self.rank} of {self.size}>"
