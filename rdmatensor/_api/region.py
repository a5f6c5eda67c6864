# SPDX-License-Identifier: Apache-2.0
"""Memory that peers may access (Region), and the memory of a peer (RemoteRegion)."""

from __future__ import annotations

from enum import IntFlag
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .._ffi import ffi, lib
from ..errors import Closed, RegionError, UsageError, check
from . import buffers
from .arguments import whole, word
from .buffers import Array, Buffer, from_buffer
from .cuda import CudaArray
from .dlpack import MemoryKind, capsule_of
from .transfer import COMPLETED, Transfer

if TYPE_CHECKING:
    from ..device import Device
    from .remote import RemoteDevice


class Access(IntFlag):
    """What peers may do with a region."""

    NONE = 0
    READ = 1
    WRITE = 2


READ_WRITE = Access.READ | Access.WRITE


class Region:
    """Local memory that peers can open, and then read or write while this process does something else.

    Device.allocate and Device.register make regions. A region lives until close(), or until the device is
    closed, even if the object is dropped. Closing it withdraws it from peers. Arrays and memoryviews of it
    stay valid; the memory is freed when the last of them is dropped. A peer that uses the memory in place
    keeps its own mapping.

    A region in CUDA memory has `__cuda_array_interface__` in the place of `array`: `torch.as_tensor(region,
    device="cuda")` is a tensor over it. Such memory is freed when the object and all these are dropped.
    """

    def __init__(
        self, device: Device, handle: Any, array: Array | CudaArray, name: str | None
    ) -> None:
        info = ffi.new("rdt_region_info *")
        check(lib.rdt_region_get_info(handle, info))
        self._device = device
        self._handle = handle
        self._array = array if isinstance(array, np.ndarray) else None
        # Not dropped by close(), because others may have its address.
        self._cuda = array if isinstance(array, CudaArray) else None
        self._open = True
        self.name = name
        self.key = int(info.key)
        self.nbytes = int(info.size)
        self.access = Access(info.access)

    @property
    def array(self) -> Array:
        """The memory as a numpy array, without a copy. Raises Closed once the region is closed.

        Raises UsageError for CUDA memory, which the processor cannot address.
        """
        array = self._array  # before `_open`: another thread may close the region now
        if not self._open:
            raise Closed(f"{self!r} is closed")
        if array is None:
            raise UsageError(
                f"{self!r} lies in CUDA memory, which is no numpy array: use torch.as_tensor(region, "
                'device="cuda"), cupy.asarray(region) or numba.cuda.as_cuda_array(region)'
            )
        return array

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        if self._cuda is None:
            raise AttributeError(f"{self!r} does not lie in CUDA memory")
        if not self._open:
            raise Closed(f"{self!r} is closed")
        return self._cuda.__cuda_array_interface__

    @property
    def closed(self) -> bool:
        """Whether the region is closed."""
        return not self._open

    def close(self) -> None:
        """Withdraw the region from peers. A second call does nothing."""
        self._device._close_region(self)

    def __enter__(self) -> Region:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> Array:
        if dtype is not None and np.dtype(dtype) != self.array.dtype:
            if copy is False:
                raise UsageError(
                    f"an array of {self.array.dtype} becomes one of {np.dtype(dtype)} by a copy only"
                )
            return self.array.astype(dtype)
        return self.array.copy() if copy else self.array

    def __buffer__(self, flags: int) -> memoryview:  # used by Python 3.12 and newer
        return self.array.data

    def __dlpack__(self, **options: Any) -> Any:
        """Return the memory as a capsule, for `from_dlpack` of other libraries.

        Raises BufferError for CUDA memory, which `__cuda_array_interface__` describes.
        """
        if self._cuda is not None:
            raise BufferError(f"{self!r} lies in CUDA memory: use __cuda_array_interface__")
        return capsule_of(self.array, **options)

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return DLPack's number of the device where the memory lies."""
        return self.array.__dlpack_device__()

    def __repr__(self) -> str:
        name = f" {self.name!r}" if self.name else ""
        return f"<Region{name} of {self.nbytes} bytes, key {self.key:#x}>"


class RemoteRegion:
    """A region of a peer. RemoteDevice.region and RemoteDevice.allocate return it.

    Offsets and sizes are in bytes. Methods that post an operation return a Transfer. If nothing was posted
    they raise UsageError (bad buffer, closed region), RegionError (range, access) or ConnectionLost. The
    operations of one connection are executed in the order in which they were posted. Any thread may use it.

    Strided arrays and tensors of up to 64 KiB are copied: before they are written, and after they were read,
    when the Transfer becomes done. Larger ones raise UsageError: make the copy by numpy.ascontiguousarray.
    Contiguous tensors in CUDA memory are copied in the same way, whatever their size, and calls wait for
    these copies. Do not use such a target before the Transfer is done: only then is it filled. Between CUDA
    devices of one host, over shared memory, CUDA copies from device to device.
    """

    def __init__(self, remote: RemoteDevice, handle: Any) -> None:
        info = ffi.new("rdt_region_info *")
        check(lib.rdt_remote_region_get_info(handle, info))
        self._handle = handle
        self._remote = remote
        self._channel = remote._channel
        # Whether CUDA itself copies, from device to device too.
        self._by_cuda = bool(lib.rdt_remote_region_local_kinds(handle) & MemoryKind.CUDA)
        self.key = int(info.key)
        self.nbytes = int(info.size)
        self.access = Access(info.access)

    def write(self, data: Buffer, offset: int = 0, notify: int | None = None) -> Transfer:
        """Write the bytes of `data` at `offset` of the region.

        `notify` is a number of up to 64 bits. If it is given, the peer gets a notification with this number
        once the data is visible there.
        """
        handle, given = self._handle or self._need_handle(), None
        try:
            local = from_buffer(data)
            if data.__class__ is _ndarray:
                if data.dtype.hasobject:
                    raise TypeError
            elif data.__class__ is not bytes and buffers.holds_objects(data):
                raise TypeError
        except (TypeError, ValueError, BufferError):
            copies = self._remote._device._copies
            given = copies.on_device(data, False) if self._by_cuda else None
            local = copies.source(data) if given is None else given.pointer
        if notify is None:
            kind, immediate = _WRITE, 0
        else:
            kind, immediate = _WRITE_NOTIFY, whole("notify", notify)
        if offset.__class__ is not int:
            offset = whole("offset", offset)
        try:
            size = len(local) if given is None else given.nbytes
            posted = _post(self._channel, kind, local, size, handle, offset, immediate)
        except OverflowError as error:
            raise _bad_number(error) from None
        return COMPLETED if posted == 0 else self._remote._begun(posted, (local, given, handle))

    def read_into(self, array: Buffer, offset: int = 0) -> Transfer:
        """Fill `array` with the bytes from `offset` of the region."""
        handle = self._handle or self._need_handle()
        copies = self._remote._device._copies
        given = copies.on_device(array, True) if self._by_cuda else None
        local, back = copies.target(array) if given is None else (given.pointer, None)
        if offset.__class__ is not int:
            offset = whole("offset", offset)
        try:
            size = len(local) if given is None else given.nbytes
            posted = _post(self._channel, _READ, local, size, handle, offset, 0)
        except OverflowError as error:
            raise _bad_number(error) from None
        if posted:
            return self._remote._begun(posted, (local, given, handle), back)
        if back is not None:
            back()
        return COMPLETED

    def read(
        self, offset: int = 0, nbytes: int | None = None, timeout: float | None = None
    ) -> Array:
        """Read `nbytes` bytes from `offset`, and return them as a new uint8 array. Blocks.

        Without `nbytes`, it reads up to the end of the region.
        """
        array = self._room(offset, nbytes)
        self.read_into(array, offset).wait(timeout)
        return array

    async def aread(self, offset: int = 0, nbytes: int | None = None) -> Array:
        """Do what read does, for asyncio."""
        array = self._room(offset, nbytes)
        await self.read_into(array, offset)
        return array

    def fetch_add(self, offset: int, value: int, timeout: float | None = None) -> int:
        """Add `value` to the word at `offset`, as an atomic operation, and return its old value. Blocks.

        A word has 8 bytes, begins at a multiple of 8, and counts modulo 2**64 without a sign: a negative
        number, down to -2**63, means 2**64 more, and results are 0 or more. What other calls of fetch_add and
        compare_swap do to the word, in any process, comes before or after. A write() or read() may come in
        between: read the word with fetch_add(offset, 0). The owner's array shows it as uint64.

        Raises RegionError without Access.READ and Access.WRITE. Raises Unsupported without Capability.ATOMIC,
        for a region that does not begin at a multiple of 8 bytes, and, over an RDMA device that is atomic
        with itself only, for a region that peers also reach over another transport. After DeadlineExceeded
        and ConnectionLost, nobody knows whether the word has changed.
        """
        old, posted = self._change(_FETCH_ADD, offset, word("value", value), 0)
        posted.wait(timeout)
        return int(old[0])

    def compare_swap(
        self, offset: int, expected: int, desired: int, timeout: float | None = None
    ) -> int:
        """Give the word at `offset` the value `desired` if it is `expected`, as an atomic operation. Blocks.

        Returns the word's old value, without a sign; it was replaced if that is `expected`. Words and errors
        are those of fetch_add.
        """
        old, posted = self._change(
            _COMPARE_SWAP, offset, word("desired", desired), word("expected", expected)
        )
        posted.wait(timeout)
        return int(old[0])

    async def afetch_add(self, offset: int, value: int) -> int:
        """Do what fetch_add does, for asyncio."""
        old, posted = self._change(_FETCH_ADD, offset, word("value", value), 0)
        await posted
        return int(old[0])

    async def acompare_swap(self, offset: int, expected: int, desired: int) -> int:
        """Do what compare_swap does, for asyncio."""
        old, posted = self._change(
            _COMPARE_SWAP, offset, word("desired", desired), word("expected", expected)
        )
        await posted
        return int(old[0])

    def map(
        self, offset: int = 0, nbytes: int | None = None, dtype: npt.DTypeLike = np.uint8
    ) -> Array:
        """Return the peer's bytes in place, as an array of one dimension. Nothing is copied or posted.

        The array is read-only unless the region permits WRITE. It stays valid after close() and after the
        death of the peer. The peer gets the memory back when the array is dropped. Raises Unsupported unless
        the transport has Capability.MAP.
        """
        handle = self._handle or self._need_handle()
        size, out = self._extent(offset, nbytes), ffi.new("void **")
        if np.dtype(dtype).hasobject or size % (np.dtype(dtype).itemsize or 1):
            raise UsageError(f"{size} bytes cannot be seen as an array of dtype {np.dtype(dtype)}")
        check(lib.rdt_remote_region_map(handle, offset, size, out))
        # The destructor only holds the handle, which keeps the mapping.
        pointer = ffi.gc(ffi.cast("char *", out[0]), lambda _, held=handle: None)
        return buffers.view(pointer, size, bool(self.access & Access.WRITE)).view(dtype)

    @property
    def closed(self) -> bool:
        """Whether the region was given up."""
        return self._handle is None

    def close(self) -> None:
        """Give up the region. Arrays from map() stay valid. A second call does nothing.

        The peer frees what RemoteDevice.allocate created, unless such an array or another RemoteRegion of it
        is left.
        """
        self._handle = None

    def __enter__(self) -> RemoteRegion:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<RemoteRegion of {self.nbytes} bytes, key {self.key:#x}, of {self._remote!r}>"

    def _change(self, kind: int, offset: int, operand: int, expected: int) -> tuple[Any, Transfer]:
        """Post an atomic operation. Return the memory that its result goes into, and the transfer."""
        handle, old = self._need_handle(), ffi.new("uint64_t *")
        at = whole("offset", offset)
        posted = _atomic(self._channel, kind, old, handle, at, operand, expected)
        return old, COMPLETED if posted == 0 else self._remote._begun(posted, (old, handle))

    def _room(self, offset: int, nbytes: int | None) -> Array:
        self._need_handle()
        return np.empty(self._extent(offset, nbytes), dtype=np.uint8)

    def _extent(self, offset: int, nbytes: int | None) -> int:
        """Return how many bytes from `offset` on are meant, by default all."""
        first = whole("offset", offset)
        size = max(self.nbytes - first, 0) if nbytes is None else whole("nbytes", nbytes)
        if first + size > self.nbytes:
            raise RegionError(
                f"bytes [{first}, +{size}) lie outside a region of {self.nbytes} bytes", "RANGE"
            )
        return size

    def _need_handle(self) -> Any:
        handle = self._handle
        if handle is None:
            raise Closed(f"{self!r} is closed")
        return handle


def _bad_number(error: Exception) -> UsageError:
    return UsageError(f"offset and immediate are whole numbers from 0 to 2**64 - 1: {error}")


_ndarray = np.ndarray
_post = lib.rdt_python_post
_atomic = lib.rdt_python_atomic
_WRITE: int = lib.RDT_OP_WRITE
_READ: int = lib.RDT_OP_READ
_WRITE_NOTIFY: int = lib.RDT_OP_WRITE_NOTIFY
_FETCH_ADD: int = lib.RDT_OP_FETCH_ADD
_COMPARE_SWAP: int = lib.RDT_OP_COMPARE_SWAP
