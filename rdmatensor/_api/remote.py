# SPDX-License-Identifier: Apache-2.0
"""The device of another process, reached over one connection."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from enum import IntFlag
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .._ffi import ffi, lib
from ..errors import Closed, UsageError, _text, check
from . import buffers
from .arguments import access_bits, c_text, whole
from .batch import Batch
from .buffers import Buffer, Shape
from .dlpack import MemoryKind
from .event_loop import awaitable
from .region import READ_WRITE, Access, RemoteRegion, _bad_number
from .transfer import COMPLETED, Transfer, drop_complete
from .wait import milliseconds

if TYPE_CHECKING:
    from ..device import Device


class Capability(IntFlag):
    """What the transport of a connection can do."""

    MAP = 1
    UNREGISTERED_SOURCE = 2
    ENCRYPTED = 4
    ATOMIC = 8


class RemoteDevice:
    """A peer, whose regions this process opens and to which it sends notifications.

    Device.connect returns it, and Notification.source is the peer that sent a notification. It lives until
    close(), or until its Device is closed. Any thread may use it.
    """

    def __init__(self, device: Device, channel: Any) -> None:
        self._device = device
        self._channel = channel
        self._regions: weakref.WeakSet[RemoteRegion] = weakref.WeakSet()
        # Transfers whose buffers C still uses, oldest first.
        self._pending: deque[Transfer] = deque()
        info = self._info()
        self.name = _text(info.peer_name)
        self.address = _text(info.peer_address)
        self.transport = _text(info.transport)
        self.capabilities = Capability(info.capabilities)
        self.memory_kinds = MemoryKind(info.memory_kinds)
        self.encrypted = Capability.ENCRYPTED in self.capabilities
        self.generation = int(info.generation)
        self.max_notify = int(info.max_notify)
        #: Better transports than this one, and why they are not used, if this process connected.
        self.passed_over: dict[str, str] = {}
        for line in _text(lib.rdt_channel_passed_over(channel)).splitlines():
            name, _, why = line.partition(": ")
            self.passed_over[name] = why

    def region(self, which: str | int, timeout: float | None = None) -> RemoteRegion:
        """Open the peer's region with this name (str) or key (int). Blocks for at most `timeout` seconds.

        Raises RegionError if there is none, ConnectionLost or DeadlineExceeded.
        """
        out = ffi.new("rdt_remote_region **")
        channel, limit = self._need_channel(), milliseconds(timeout)
        if isinstance(which, str):
            check(lib.rdt_remote_region_find(channel, c_text("the name", which), limit, out))
        else:
            key = whole("what is neither a name (str) nor a key", which)
            check(lib.rdt_remote_region_open(channel, key, limit, out))
        return self._opened(out)

    def allocate(
        self,
        shape: Shape,
        dtype: npt.DTypeLike = np.uint8,
        access: Access = READ_WRITE,
        timeout: float | None = None,
    ) -> RemoteRegion:
        """Allocate memory on the peer: `shape` elements of `dtype`, filled with zeros. Blocks.

        Only this connection reaches the memory. The peer frees it once the region is closed or dropped and
        neither a transfer nor an array of map() uses it, at the latest when the connection ends. `access` is
        what may be done with it. Raises DeviceError (status LIMIT) beyond the peer's setting
        REMOTE_ALLOC_LIMIT or 1024 regions.
        """
        _, _, nbytes = buffers.extent(shape, dtype)
        out = ffi.new("rdt_remote_region **")
        channel, limit = self._need_channel(), milliseconds(timeout)
        bits = access_bits(access)
        check(lib.rdt_remote_region_alloc(channel, nbytes, bits, limit, out))
        return self._opened(out)

    aregion = awaitable(region, RemoteRegion.close)
    """Do what region does, for asyncio."""

    aallocate = awaitable(allocate, RemoteRegion.close)
    """Do what allocate does, for asyncio."""

    def notify(self, payload: Buffer = b"", immediate: int = 0) -> Transfer:
        """Send a notification: a number of up to 64 bits and `payload`, at most `max_notify` bytes.

        The peer gets it after everything that was posted on this connection before.
        """
        channel, local = self._need_channel(), self._device._copies.source(payload)
        if immediate.__class__ is not int:
            immediate = whole("immediate", immediate)
        try:
            posted = _post(channel, _NOTIFY, local, len(local), ffi.NULL, 0, immediate)
        except OverflowError as error:
            raise _bad_number(error) from None
        return COMPLETED if posted == 0 else self._begun(posted, local)

    def batch(self) -> Batch:
        """Return a new, empty Batch for this peer."""
        return Batch(self)

    def post(self, batch: Batch) -> Transfer:
        """Post the operations of `batch`. All are checked before the first byte moves."""
        if not isinstance(batch, Batch):
            raise UsageError(f"{batch!r} is no Batch")
        if batch._remote is not self:
            raise UsageError(f"the batch was made for {batch._remote!r}, not for {self!r}")
        out = ffi.new("rdt_transfer **")
        ready = batch._prepare()
        status = lib.rdt_channel_submit(self._need_channel(), ready.ops, len(ready.rows), out)
        check(status)
        # Not the batch itself: rows may be added to it while these are running.
        if out[0]:
            return self._track(out[0], ready, ready.back)
        if ready.back is not None:
            ready.back()
        return COMPLETED

    @property
    def up(self) -> bool:
        """Whether the connection accepts operations."""
        return self._channel is not None and bool(self._info().up)

    @property
    def closed(self) -> bool:
        """Whether this side closed the connection."""
        return self._channel is None

    @property
    def peer(self) -> str:
        """The peer's name and address, for messages."""
        return f"{self.name} ({self.address})"

    def close(self) -> None:
        """Close the connection. Pending transfers fail with Cancelled. A second call does nothing."""
        channel, self._channel = self._channel, None
        if channel is None:
            return
        for region in list(self._regions):
            region.close()
        lib.rdt_channel_close(channel)
        self._device._drop(self, channel)

    def __enter__(self) -> RemoteDevice:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<RemoteDevice {self.peer} over {self.transport}>"

    def _info(self) -> Any:
        info = ffi.new("rdt_channel_info *")
        check(lib.rdt_channel_get_info(self._need_channel(), info))
        return info

    def _need_channel(self) -> Any:
        channel = self._channel
        if channel is None:
            raise Closed(f"{self!r} is closed")
        return channel

    def _opened(self, out: Any) -> RemoteRegion:
        region = RemoteRegion(self, ffi.gc(out[0], lib.rdt_remote_region_unref))
        self._regions.add(region)
        return region

    def _begun(self, posted: int, keep: Any, back: Callable[[], None] | None = None) -> Transfer:
        """Return the transfer that rdt_python_post began, or raise what it failed with."""
        check(min(posted, 0))
        return self._track(ffi.cast("rdt_transfer *", posted), keep, back)

    def _track(self, handle: Any, keep: Any, back: Callable[[], None] | None = None) -> Transfer:
        transfer = Transfer(ffi.gc(handle, lib.rdt_transfer_free), keep, back)
        self._pending.append(transfer)
        drop_complete(self._pending)
        return transfer

    def _ended(self) -> bool:
        """Return whether the connection has ended and C uses no buffers of it. The caller holds no lock."""
        if self.up:
            return False
        drop_complete(self._pending)
        return not self._pending

    def _forget(self) -> None:
        """Forget the handles after fork: closing them here would reach the parent's peers."""
        for region in list(self._regions):
            if region._handle is not None:
                ffi.gc(region._handle, None)
        for transfer in self._pending:
            ffi.gc(transfer._handle, None)
        if self._channel is not None:
            ffi.gc(self._channel, None)


_post = lib.rdt_python_post
_NOTIFY: int = lib.RDT_OP_NOTIFY
