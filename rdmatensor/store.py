# SPDX-License-Identifier: Apache-2.0
"""Parameters that peers pull, and slots that they push into, without waiting for each other."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from ._api import buffers
from ._api.arguments import c_text, whole
from ._api.buffers import Array, Buffer
from ._api.event_loop import awaitable
from ._api.wait import DEADLINE, IN_PROGRESS, milliseconds, wait_in_slices
from ._ffi import ffi, lib
from .device import Device
from .errors import Closed, DeadlineExceeded, UsageError, _text, check


class Pulled(NamedTuple):
    """What a pull has read: the version and mark of a publication, and how often it was overwritten."""

    version: int
    mark: int
    repeats: int


class Member(NamedTuple):
    """What a store knows about another member.

    `connected`: pull and push can be called for it. `present`: it has connected to this store. `gone`: it
    was present. `address` is where one can connect to it, "" before it has connected.
    """

    connected: bool
    present: bool
    gone: bool
    generation: int
    clock: int
    address: str


class Arrival:
    """What a member has pushed. `data` has the bytes where they arrived: use them before `release`."""

    def __init__(self, store: Store, arrival: Any) -> None:
        self._store: Store | None = store
        self.rank = int(arrival.rank)
        self.mark = int(arrival.mark)
        start = int(ffi.cast("uintptr_t", arrival.data)) - store._slots_at
        self.data: Array = store._slots[start : start + int(arrival.size)]

    def release(self) -> None:
        """Free the slot for the next push. A second call does nothing."""
        store, self._store = self._store, None
        if store is not None:
            store._release(self.rank)

    def __enter__(self) -> Arrival:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def _put_back(arrival: Arrival | None) -> None:
    if arrival is not None and arrival._store is not None:
        arrival._store._untaken.append(arrival)


class Store:
    """The parameters of this process, which others read, and a slot for what each of them sends.

    Members have a rank each and open stores of one name with the same sizes; each connects to the others
    whose parameters it pulls, or to which it pushes. Nobody waits for anybody: a pull reads memory, and a
    push writes into the sender's own slot if that is free. A member that dies raises ConnectionLost in the
    calls for it only, and may come back with another address. Any thread may use it, but only one thread at
    a time may publish.

    `nbytes` is the size of the parameters, and `slot_nbytes` the largest size of a push. `buffers` is how
    many versions are kept: with more, slower readers find theirs whole.
    """

    def __init__(
        self,
        device: Device,
        rank: int,
        size: int,
        nbytes: int,
        slot_nbytes: int = 0,
        name: str = "store",
        buffers: int = 2,
    ) -> None:
        self._handle: Any = None
        text = c_text("name", name)
        options = ffi.new("rdt_store_options *")
        options.struct_size, options.name = ffi.sizeof("rdt_store_options"), text
        options.rank, options.size = _rank(rank), whole("size", size, most=2**32 - 1)
        options.buffers = whole("buffers", buffers, most=2**32 - 1)
        options.bytes = whole("nbytes", nbytes)
        options.slot_bytes = whole("slot_nbytes", slot_nbytes)
        sizes = ffi.new("uint64_t[2]")
        check(lib.rdt_store_sizes(options, sizes, sizes + 1))
        # Arrays keep the memory beyond the store.
        values, slots = (_memory(int(each)) for each in sizes)
        options.values, options.slots = ffi.from_buffer(values), ffi.from_buffer(slots)
        self._values, self._slots = values, slots
        self._values_at, self._slots_at = values.ctypes.data, slots.ctypes.data
        self._changed = threading.Condition()
        self._calls = 0
        # What cancelled calls of atake() had taken.
        self._untaken: deque[Arrival] = deque()
        self._closing = False
        self._device = device
        self.rank, self.size, self.nbytes = rank, size, nbytes
        self.name, self.slot_nbytes = name, slot_nbytes
        out = ffi.new("rdt_store **")
        with device._call() as handle:
            check(lib.rdt_store_open(handle, options, out))
            self._handle = out[0]
            device._stores.add(self)

    def connect(self, rank: int, address: str, timeout: float | None = None) -> None:
        """Connect to a member's store, or connect anew. Waits up to `timeout` seconds for it to be opened.

        Raises UsageError if it is another member's or has other sizes, RegionError if none is opened in
        time, and what Device.connect raises.
        """
        to, where, limit = _rank(rank), c_text("address", address), milliseconds(timeout)
        self._check(lambda handle: lib.rdt_store_connect(handle, to, where, limit))

    aconnect = awaitable(connect)
    """Do what connect does, for asyncio."""

    def member(self, rank: int) -> Member:
        """Return what is known about another member."""
        found = ffi.new("rdt_store_member *")
        of = _rank(rank)
        self._check(lambda handle: lib.rdt_store_get_member(handle, of, found))
        return Member(
            bool(found.connected),
            bool(found.present),
            bool(found.gone),
            int(found.generation),
            int(found.clock),
            _text(found.address),
        )

    def publish(self, array: Buffer, mark: int = 0) -> int:
        """Copy `array`, of `nbytes` bytes, and make it the newest version. Return its number, from 1.

        `mark` is a number of up to 64 bits that readers get beside it, such as a step.
        """
        local = np.frombuffer(ffi.buffer(self._device._copies.source(array)), np.uint8)
        if local.nbytes != self.nbytes:
            raise UsageError(
                f"store {self.name!r} publishes {self.nbytes} bytes, not {local.nbytes}"
            )
        mark = whole("mark", mark)
        memory, version = ffi.new("void **"), ffi.new("uint64_t *")
        self._check(lambda handle: lib.rdt_store_begin(handle, memory))
        start = int(ffi.cast("uintptr_t", memory[0])) - self._values_at
        np.copyto(self._values[start : start + self.nbytes], local)
        self._check(lambda handle: lib.rdt_store_publish(handle, mark, version))
        return int(version[0])

    def pull(
        self, rank: int, into: Buffer, offset: int = 0, timeout: float | None = None
    ) -> Pulled:
        """Fill `into` from a member's newest version, from `offset` bytes on. The bytes are of one version.

        Waits for the first version. Raises DeadlineExceeded, also if the member overwrites versions faster
        than they can be read, ConnectionLost, and RegionError beyond the end.
        """
        local, back = self._device._copies.target(into)
        found, limit = ffi.new("rdt_store_pulled *"), milliseconds(timeout)
        of, first = _rank(rank), whole("offset", offset)
        self._check(
            lambda handle: lib.rdt_store_pull(handle, of, first, len(local), local, limit, found)
        )
        if back is not None:
            back()
        return Pulled(int(found.version), int(found.mark), int(found.repeats))

    apull = awaitable(pull)
    """Do what pull does, for asyncio. A cancelled call may write to `into` until its time is over."""

    def push(self, rank: int, data: Buffer, mark: int = 0, timeout: float | None = None) -> bool:
        """Write `data` into this member's slot at member `rank`. Return False, and write nothing, if it is
        not free.

        A slot is free once the other member has released what came before. After an error, the member may
        have got the data or not.
        """
        local = self._device._copies.source(data)
        sent, limit = ffi.new("int *"), milliseconds(timeout)
        to, mark = _rank(rank), whole("mark", mark)
        self._check(
            lambda handle: lib.rdt_store_push(handle, to, local, len(local), mark, limit, sent)
        )
        return bool(sent[0])

    apush = awaitable(push)
    """Do what push does, for asyncio. The member may still get the data of a cancelled call."""

    def take(self, timeout: float | None = 0) -> Arrival | None:
        """Return the oldest push that has not been taken; None if none comes within `timeout` seconds."""
        found = ffi.new("rdt_store_arrival *")
        try:
            status = self._wait(
                lambda handle, ms: lib.rdt_store_take(handle, ms, found),
                timeout,
                lambda: bool(self._untaken),
            )
        except DeadlineExceeded:
            status = IN_PROGRESS
        if status != IN_PROGRESS:
            return Arrival(self, found)
        with suppress(IndexError):
            return self._untaken.popleft()
        return None

    atake = awaitable(take, _put_back)
    """Do what take does, for asyncio. Cancelling it loses no push."""

    def set_clock(self, clock: int) -> None:
        """Tell all connected members this member's clock, which never goes back.

        With 2**64 - 1, nobody waits for this member any more.
        """
        told = whole("clock", clock)
        self._check(lambda handle: lib.rdt_store_set_clock(handle, told))

    def wait_clocks(self, clock: int, timeout: float | None = None) -> None:
        """Wait until every member that is not gone has told a clock of `clock` or more.

        Raises DeadlineExceeded, which names the slowest one.
        """
        told = whole("clock", clock)
        if told > 0:
            self._wait(lambda handle, ms: lib.rdt_store_wait_clocks(handle, told, ms), timeout)

    await_clocks = awaitable(wait_clocks)
    """Do what wait_clocks does, for asyncio."""

    @property
    def closed(self) -> bool:
        """Whether the store is closed or being closed."""
        return self._handle is None or self._closing

    def close(self) -> None:
        """End the connections. Calls of other threads end with Closed. A second call does nothing."""
        with self._changed:
            first = not self._closing and self._handle is not None
            self._closing = True
            self._calls += first
        if first:
            lib.rdt_store_stop(self._handle)
            self._end()
        with self._changed:
            while self._calls:
                self._changed.wait()
            handle, self._handle = self._handle, None
        if handle is not None:
            self._device._stores.discard(self)
            lib.rdt_store_close(handle)

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Store {self.name!r}, rank {self.rank} of {self.size}>"

    def _begin(self) -> Any:
        with self._changed:
            if self._closing:
                raise Closed(f"{self!r} is closed")
            self._calls += 1
            return self._handle

    def _end(self) -> None:
        with self._changed:
            self._calls -= 1
            self._changed.notify_all()

    def _check(self, call: Any) -> None:
        handle = self._begin()
        try:
            check(call(handle))
        finally:
            self._end()

    def _wait(
        self, call: Any, timeout: float | None, stopped: Callable[[], bool] = lambda: False
    ) -> int:
        """Wait in slices, so that Ctrl-C, close() and `stopped` act."""
        handle = self._begin()
        try:
            status = wait_in_slices(
                lambda ms: int(call(handle, ms)), timeout, lambda: self._closing or stopped()
            )
            if self._closing and status == DEADLINE:
                raise Closed(f"{self!r} is closed")
            check(min(status, 0))
            return status
        finally:
            self._end()

    def _forget(self) -> None:
        """Give up the handle after fork: it belongs to the parent process."""
        self._changed = threading.Condition()
        self._closing = True
        self._handle = None
        self._untaken.clear()

    def _release(self, rank: int) -> None:
        with self._changed:
            if not self._closing:
                check(lib.rdt_store_release(self._handle, rank))


def _rank(rank: Any) -> int:
    return whole("rank", rank, most=2**32 - 1)


def _memory(nbytes: int) -> Array:
    return buffers.view(buffers.shareable(nbytes), nbytes)
