# SPDX-License-Identifier: Apache-2.0
"""The local device: its regions, its connections and the notifications that peers send."""

from __future__ import annotations

import atexit
import os
import threading
import warnings
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ._api import buffers, cuda, event_loop
from ._api.arguments import access_bits, c_text, c_text_or_null, whole
from ._api.buffers import Array, Buffer, Shape
from ._api.copies import Copies
from ._api.dlpack import MemoryKind, kind_of
from ._api.region import READ_WRITE, Access, Region
from ._api.remote import RemoteDevice
from ._api.wait import DEADLINE, IN_PROGRESS, milliseconds, wait_in_slices
from ._ffi import ffi, lib
from .errors import Closed, DeadlineExceeded, Unsupported, UsageError, _text, check

if TYPE_CHECKING:
    from .group import Group
    from .store import Store


class Notification(NamedTuple):
    """A message from a peer. Everything that the peer wrote before it is visible now."""

    source: RemoteDevice
    immediate: int
    payload: bytes


class DeviceStats(NamedTuple):
    """Counters of a device since it was opened.

    `regions`, `region_bytes` and `pending` are gauges: the regions that exist now, their bytes, and the
    requests to all peers that are not complete. `copies` counts the bytes of strided arrays, and of
    CUDA memory, that operations of connections and stores had to copy; GroupInfo has those of groups.
    """

    writes: int
    write_bytes: int
    reads: int
    read_bytes: int
    atomics: int
    notifies_sent: int
    notifies_received: int
    notify_bytes_sent: int
    notify_bytes_received: int
    queued: int
    doorbells: int
    wakeups: int
    channels_opened: int
    channels_lost: int
    regions: int
    region_bytes: int
    pending: int
    copies: int


class Transport(NamedTuple):
    """One transport of a device. `text` says what it uses, or why this machine cannot use it."""

    usable: bool
    text: str
    memory_kinds: MemoryKind


def _transports(device: Any) -> Iterator[tuple[str, Transport]]:
    info = ffi.new("rdt_transport_info *")
    for index in count():
        if lib.rdt_device_get_transport(device, index, info) != lib.RDT_OK:
            return
        kinds = MemoryKind(info.memory_kinds)
        yield _text(info.name), Transport(bool(info.usable), _text(info.text), kinds)


def _listed(transports: Any) -> Any:
    """Return the names for C; NULL if there are none."""
    if isinstance(transports, str) or not all(isinstance(each, str) for each in transports):
        raise UsageError(f'transports is {transports!r}: give a sequence of names, such as ["tcp"]')
    return c_text("transports", ",".join(transports)) if transports else ffi.NULL


class Device:
    """A device of this machine: a port that peers connect to, a progress thread, regions and connections.

    `name` appears at peers and in messages; by default it is host:pid. `bind` is the address to listen on;
    by default it is the setting BIND_ADDRESS. Port 0 is the setting BIND_PORT, by default any free port.
    `transports` maps the name of each transport to what it uses, or to the reason why this machine cannot
    use it. Closing the device closes its regions and connections. Any thread may use it. A child of
    os.fork() may not; it opens its own device.
    """

    def __init__(self, name: str | None = None, bind: str | None = None, port: int = 0) -> None:
        self._handle: Any = None
        options = ffi.new("rdt_device_options *")
        texts = c_text_or_null("name", name), c_text_or_null("bind", bind)
        options.struct_size = ffi.sizeof("rdt_device_options")
        options.name, options.bind_address = texts
        options.port = whole("port", port, most=65535)
        out = ffi.new("rdt_device **")
        check(lib.rdt_device_open(options, out))
        self._handle = out[0]
        # Do not drop objects with finalizers while holding it: finalizers may wait for other threads.
        self._copies = Copies()
        self._changed = threading.Condition()
        self._calls = 0
        self._closing = False
        self._forked = False
        # Regions and connections live until they are closed, even if Python drops the object, because
        # a peer may be using them. Connections are found by the address of their C handle.
        self._regions: set[Region] = set()
        self._remotes: dict[int, RemoteDevice] = {}
        self._groups: set[Group] = set()
        self._stores: set[Store] = set()
        # The memory of arrays that have their own region, and its size, by the address of the region.
        self._owned: dict[int, tuple[Any, int]] = {}
        self._closing_remotes: list[RemoteDevice] = []
        self.name = _text(lib.rdt_device_name(self._handle))
        self.address = _text(lib.rdt_device_address(self._handle))
        self.transports = dict(_transports(self._handle))
        _open_devices.add(self)

    def allocate(
        self,
        shape: Shape,
        dtype: npt.DTypeLike = np.uint8,
        access: Access = READ_WRITE,
        name: str | None = None,
        memory: str = "host",
    ) -> Region:
        """Allocate `shape` elements of `dtype`, filled with zeros, and let peers open them.

        `memory` is where: "host", or "cuda:0" for a CUDA device by its number.

        Peers open the region by `name`, which is unique on the device and at most 63 bytes long. They open a
        region without a name by its key. Raises DeviceError if no memory is left, and Unsupported without
        CUDA's driver.
        """
        if memory != "host":
            return self.register(cuda.empty(shape, dtype, memory), access, name)
        return self.register(buffers.empty(shape, dtype), access, name)

    def register(
        self, array: Buffer, access: Access = READ_WRITE, name: str | None = None
    ) -> Region:
        """Let peers use the memory of an existing array or buffer. The region keeps it alive.

        With `access` READ the memory may be read-only: bytes, a mapped file, an array that is not writable.
        A contiguous tensor in CUDA memory may be registered too; peers reach it over tcp, on the same machine
        also. Whoever computes what peers read must wait for the stream first, unless it is the default one.

        A transport that shares pages (shm) needs an array from rdmatensor.empty. With `access` READ it takes
        other memory too: then the kernel copies what peers read, if it lets them, and they cannot map it.
        Raises Unsupported if no transport of the device can share the memory. RDMA pins the memory; raises
        DeviceError if the limit of locked memory does not permit that.
        """
        bits, text = access_bits(access), c_text_or_null("name", name)
        kind = kind_of(array)
        if not any(kind & each.memory_kinds for each in self.transports.values()):
            raise Unsupported(f"no transport takes memory of kind {kind.name}", "UNSUPPORTED")
        memory: Array | cuda.CudaArray
        if kind is MemoryKind.CUDA:
            memory = (cuda.writable if bits & Access.WRITE else cuda.array_of)(array)
            local, size, number = memory.pointer, memory.nbytes, lib.RDT_MEMORY_CUDA
        else:
            local = (buffers.target if bits & Access.WRITE else buffers.memory)(array)
            memory, size, number = buffers.as_array(array), len(local), lib.RDT_MEMORY_HOST
        out = ffi.new("rdt_region **")
        with self._call() as device:
            check(lib.rdt_region_register_kind(device, number, local, size, bits, text, out))
            region = Region(self, out[0], memory, name)
            with self._changed:
                self._regions.add(region)
        return region

    def connect(
        self,
        address: str,
        timeout: float | None = None,
        transports: Sequence[str] = (),
        expect: str | None = None,
    ) -> RemoteDevice:
        """Connect to the device at "host:port". Blocks for at most `timeout` seconds.

        Takes the first transport that works, of `transports` if any are named. `expect` is the name that the
        device must have; with a secret, nobody without it can pretend that name, or divert the connection to
        another device that has the secret. Raises ConnectionRefused, whose text gives the reason for each
        transport, or DeadlineExceeded.
        """
        out, limit = ffi.new("rdt_channel **"), milliseconds(timeout)
        where, name = c_text("address", address), c_text_or_null("expect", expect)
        over = _listed(transports)
        with self._call() as device:
            check(lib.rdt_device_connect_to(device, where, name, over, limit, out))
            return self._adopt(ffi.gc(out[0], lib.rdt_channel_unref))

    aconnect = event_loop.awaitable(connect, RemoteDevice.close)
    """Do what connect does, for asyncio."""

    def next_notification(self, timeout: float | None = None) -> Notification:
        """Return the oldest notification of any peer. Waits for one for at most `timeout` seconds.

        Raises DeadlineExceeded if none came. No notification is lost: if nobody takes them, senders wait.
        """
        found = self._next(timeout)
        if found is None:
            raise DeadlineExceeded("no notification is there")
        return found

    def notifications(self, timeout: float | None = None) -> Iterator[Notification]:
        """Iterate over notifications until none has come for `timeout` seconds."""
        # A name for one would keep the memory of its source until the next one comes.
        with suppress(DeadlineExceeded):
            while True:
                yield self.next_notification(timeout)

    async def anext_notification(self, timeout: float | None = None) -> Notification:
        """Do what next_notification does, for asyncio. Cancelling it loses no notification.

        Any number of coroutines, of any number of loops, may wait. They occupy no thread, and those of a
        loop get notifications in the order in which they began to wait.
        """
        return await event_loop.notification(self, timeout)

    def stats(self) -> DeviceStats:
        """Return the counters of this device."""
        stats = ffi.new("rdt_stats *")
        with self._call() as device:
            check(lib.rdt_device_stats(device, stats))
        of_c = {field: int(getattr(stats, field)) for field in DeviceStats._fields[:-1]}
        return DeviceStats(**of_c, copies=self._copies.nbytes)

    @property
    def registrable(self) -> int | None:
        """The bytes that can still be registered before a limit of the system is reached. None: no limit.

        Verbs pin memory, and RLIMIT_MEMLOCK limits pinned memory for the whole process.
        """
        with self._call() as device:
            limit = int(lib.rdt_device_registrable(device))
        return None if limit == 2**64 - 1 else limit

    @property
    def closed(self) -> bool:
        """Whether the device is closed."""
        return self._handle is None

    def close(self) -> None:
        """Close connections and regions, then the device. A second call does nothing.

        Pending transfers fail with Closed or Cancelled. `close` waits for the calls that other threads make
        on this device; calls that wait for peers, groups or notifications end at once.
        """
        with self._changed:
            if not self._closing:
                lib.rdt_device_interrupt(self._handle or ffi.NULL)
            self._closing = True
            while self._calls:
                self._changed.wait()
            handle, self._handle = self._handle, None
            regions, self._regions = self._regions, set()
        if handle is None:
            return
        for group in list(self._groups):
            group.close()
        for store in list(self._stores):
            store.close()
        for remote in list(self._remotes.values()):
            remote.close()
        lib.rdt_device_close(handle)
        # C uses neither registered memory nor buffers of transfers any more: both may be freed.
        for region in regions:
            region._open = False
            region._handle = region._array = None
        self._owned.clear()
        self._closing_remotes.clear()
        _open_devices.discard(self)

    def __enter__(self) -> Device:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_handle", None) is not None:
            warnings.warn(f"{self!r} was not closed", ResourceWarning, stacklevel=2, source=self)
            self.close()

    def __repr__(self) -> str:
        return f"<Device {self.name} at {self.address}>"

    def _begin(self) -> Any:
        """Return the C handle. close() does not free it before _end()."""
        with self._changed:
            if self._forked:
                raise UsageError(
                    f"{self!r} was opened before fork: open one in this process", "FORKED"
                )
            if self._closing:
                raise Closed(f"{self!r} is closed")
            self._calls += 1
            return self._handle

    def _end(self) -> None:
        with self._changed:
            self._calls -= 1
            if self._closing:
                self._changed.notify_all()

    @contextmanager
    def _call(self) -> Iterator[Any]:
        handle = self._begin()
        try:
            yield handle
        finally:
            self._end()

    def _next(self, timeout: float | None) -> Notification | None:
        """Return the next notification; None only if there is none and `timeout` is 0."""
        note = ffi.new("rdt_notification *")
        device = self._begin()
        try:
            status = wait_in_slices(
                lambda limit: int(lib.rdt_device_next_notification(device, limit, note)),
                timeout,
                lambda: self._closing,
            )
            if self._closing and status == DEADLINE:
                raise Closed(f"{self!r} is closed")
            if status == IN_PROGRESS:
                return None
            check(status)
            try:
                source = self._source(note.channel)
                payload = bytes(ffi.buffer(note.data, note.size)) if note.size else b""
                return Notification(source, int(note.immediate), payload)
            finally:
                lib.rdt_notification_clear(note)
        finally:
            self._end()

    def _source(self, channel: Any) -> RemoteDevice:
        """Return the object for a channel that C lends us."""
        known = self._remotes.get(int(ffi.cast("uintptr_t", channel)))
        if known is not None and not known.closed:
            return known
        lib.rdt_channel_ref(channel)
        return self._adopt(ffi.gc(channel, lib.rdt_channel_unref))

    def _adopt(self, channel: Any) -> RemoteDevice:
        """Return the one object for a channel whose handle we own."""
        key = int(ffi.cast("uintptr_t", channel))
        remote = RemoteDevice(self, channel)
        with self._changed:
            present = known = self._remotes.setdefault(key, remote)
            if present.closed:  # and dropped only behind the lock
                known = self._remotes[key] = remote
            others = [(k, r) for k, r in self._remotes.items() if r is not known]
        ended = [(k, r) for k, r in others if r._ended()]
        with self._changed:
            for old, r in ended:
                if self._remotes.get(old) is r:
                    del self._remotes[old]
        return known

    def _drop(self, remote: RemoteDevice, channel: Any) -> None:
        """Forget a closed peer, because its handle may soon name another channel. Called by its close()."""
        with self._changed:
            key = int(ffi.cast("uintptr_t", channel))
            if self._remotes.get(key) is remote:
                del self._remotes[key]
            # C completes pending operations a little later. Their buffers must live until then.
            self._closing_remotes.append(remote)
            closing = list(self._closing_remotes)
        ended = {r for r in closing if r._ended()}
        with self._changed:
            self._closing_remotes = [r for r in self._closing_remotes if r not in ended]

    def _close_region(self, region: Region) -> None:
        """Close a region, unless close() has begun, which closes all of them. Called by Region.close."""
        array = None
        with self._changed:
            handle, region._handle = region._handle, None
            if handle is not None and self._handle is not None:
                lib.rdt_region_close(handle)
                self._regions.discard(region)
                region._open = False
                array, region._array = region._array, None
        del array  # its finalizers may wait for other threads

    def _registered(self, nbytes: int) -> Array:
        """Return bytes that have their own region, which is closed with the last view of them."""
        memory, out = buffers.shareable(nbytes), ffi.new("rdt_region **")
        access = int(READ_WRITE)
        with self._call() as device:
            check(lib.rdt_region_register(device, memory, nbytes, access, ffi.NULL, out))
            region, key = out[0], int(ffi.cast("uintptr_t", out[0]))
            with self._changed:
                self._owned[key] = memory, nbytes
        device = weakref.ref(self)

        def end(_memory: Any) -> None:
            owner = device()
            if owner is not None:
                owner._close_owned(region, key)

        return buffers.view(ffi.gc(memory, end), nbytes)

    def _has_registered(self, address: int, nbytes: int) -> bool:
        """Return whether these bytes lie in an array of _registered()."""
        with self._changed:
            owned = list(self._owned.values())
        starts = [(int(ffi.cast("uintptr_t", memory)), size) for memory, size in owned]
        return any(start <= address and address + nbytes <= start + size for start, size in starts)

    def _close_owned(self, region: Any, key: int) -> None:
        """Close the region of an array, unless close() has begun: then C may still use the memory."""
        with self._changed:
            if self._handle is not None and key in self._owned:
                lib.rdt_region_close(region)
                del self._owned[key]

    def _forget(self) -> None:
        """Give up everything after fork: it belongs to the parent process."""
        self._changed = threading.Condition()
        self._closing = self._forked = True
        self._handle = None
        for remote in [*self._remotes.values(), *self._closing_remotes]:
            remote._forget()
        for group in self._groups:
            group._calls.forget()
        for store in self._stores:
            store._forget()
        for region in self._regions:
            region._handle = None


_open_devices: weakref.WeakSet[Device] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """Close all devices at exit, so that peers see a closed connection at once, not a lost one later."""
    for device in list(_open_devices):
        device.close()


def _forget_all() -> None:
    for device in list(_open_devices):
        device._forget()
        _open_devices.discard(device)


os.register_at_fork(after_in_child=_forget_all)
