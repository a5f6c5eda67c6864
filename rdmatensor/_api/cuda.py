# SPDX-License-Identifier: Apache-2.0
"""Arrays in the memory of CUDA devices, and their copies on the host.

They come by DLPack or by the CUDA array interface, whose streams are respected: a copy begins when what the
other library queued before is done, and is complete when the call returns.
"""

from __future__ import annotations

import math
import threading
from typing import Any

import numpy as np
import numpy.typing as npt

from .._ffi import ffi, lib
from ..errors import RdmaError, UsageError, check
from . import dlpack
from .arguments import whole
from .buffers import Array, Shape, extent, from_buffer
from .dlpack import MemoryKind, kind_of

_INTERFACE = 3  # the version that names the stream


class CudaArray:
    """C-contiguous elements in the memory of a CUDA device. It keeps them alive."""

    __slots__ = ("_owner", "address", "dtype", "nbytes", "read_only", "shape")

    def __init__(
        self,
        address: int,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        read_only: bool,
        owner: Any,
    ) -> None:
        self.address, self.shape, self.dtype = address, shape, dtype
        self.read_only = read_only
        self.nbytes = math.prod(shape) * dtype.itemsize
        self._owner = owner

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        # Types that numpy lacks have no name in the interface.
        name = self.dtype.str if self.dtype.kind != "V" else f"<u{self.dtype.itemsize}"
        return {
            "data": (self.address, self.read_only),
            "shape": self.shape,
            "strides": None,
            "typestr": name,
            "version": _INTERFACE,
            "stream": None,
        }

    @property
    def pointer(self) -> Any:
        """The address for C."""
        return ffi.cast("void *", self.address)

    def to_host(self) -> Array:
        """Return a copy on the host."""
        host = np.empty(self.shape, self.dtype)
        if self.nbytes:
            check(lib.rdt_cuda_copy(_bytes_of(host), self.pointer, self.nbytes))
        return host

    def fill(self, host: Array) -> None:
        """Copy as many bytes from the host."""
        if self.nbytes:
            check(lib.rdt_cuda_copy(self.pointer, _bytes_of(host), self.nbytes))


class CopyToDevice:
    """Puts the result of an operation from the host into CUDA memory, once. Thread-safe.

    After a failure, every call raises it: nobody may take the memory for filled.
    """

    __slots__ = ("_error", "_lock", "_pair")

    def __init__(self, array: CudaArray, host: Array) -> None:
        self._pair: tuple[CudaArray, Array] | None = (array, host)
        self._error: RdmaError | None = None
        self._lock = threading.Lock()

    def __call__(self) -> None:
        with self._lock:
            pair, self._pair = self._pair, None
            if pair is not None:
                try:
                    pair[0].fill(pair[1])
                except RdmaError as error:
                    self._error = error
            if self._error is not None:
                raise self._error


def is_cuda(data: Any) -> bool:
    """Return whether `data` lies in the memory of a CUDA device."""
    return data is not None and kind_of(data) is MemoryKind.CUDA


def array_of(data: Any) -> CudaArray:
    """Return the CUDA memory of `data`, once it holds what was queued for it on its library's stream.

    Raises UsageError if it has gaps between its elements, or does not tell its stream.
    """
    if isinstance(data, CudaArray):
        return data
    interface = getattr(data, "__cuda_array_interface__", None)
    if interface is not None and interface.get("version", 0) >= _INTERFACE:
        return _by_interface(data, interface)
    if hasattr(data, "__dlpack__"):
        return _by_dlpack(data)
    raise UsageError(
        f"the {type(data).__name__} does not tell on which stream its elements are computed: pass a tensor "
        "with DLPack, or with version 3 of the CUDA array interface"
    )


def writable(data: Any) -> CudaArray:
    """Return what array_of returns. Raises UsageError if it may not be written."""
    array = array_of(data)
    if array.read_only:
        raise UsageError(f"the CUDA memory of this {type(data).__name__} is read-only")
    return array


def empty(shape: Shape, dtype: npt.DTypeLike, memory: str) -> CudaArray:
    """Return zeros in new memory of the device "cuda:NUMBER"."""
    kind, _, number = memory.partition(":")
    if kind != "cuda" or not (number.isdigit() or memory == "cuda"):
        raise UsageError(f'memory is {memory!r}: give "host", or "cuda:0" for a CUDA device')
    dims, elements, nbytes = extent(shape, dtype)
    device = whole("the number of the CUDA device", int(number or 0), most=2**31 - 1)
    out = ffi.new("void **")
    check(lib.rdt_cuda_alloc(device, nbytes, out))
    owner = ffi.gc(out[0], lib.rdt_cuda_free)
    return CudaArray(int(ffi.cast("uintptr_t", out[0])), dims, elements, False, owner)


def _bytes_of(host: Array) -> Any:
    return from_buffer(host.reshape(-1).view(np.uint8))


def _need_contiguous(data: Any, shape: tuple[int, ...], strides: tuple[int, ...] | None) -> None:
    """Raise UsageError unless the elements lie one behind the other. Strides count elements."""
    wanted = 1
    for size, stride in reversed(list(zip(shape, strides or (), strict=strides is not None))):
        if size > 1 and stride != wanted and 0 not in shape:
            raise UsageError(
                f"the {type(data).__name__} of shape {shape} is not C-contiguous: pass a contiguous copy"
            )
        wanted *= size


def _by_interface(data: Any, interface: dict[str, Any]) -> CudaArray:
    dtype, shape = np.dtype(interface["typestr"]), tuple(interface["shape"])
    strides = interface.get("strides")
    if strides is not None and dtype.itemsize:
        strides = tuple(each / dtype.itemsize for each in strides)
    _need_contiguous(data, shape, strides)
    address, read_only = interface["data"]
    array = CudaArray(int(address or 0), shape, dtype, bool(read_only), data)
    stream = interface.get("stream")
    if stream is not None and array.nbytes:
        check(lib.rdt_cuda_wait(array.pointer, int(stream)))
    return array


def _by_dlpack(data: Any) -> CudaArray:
    stream = ffi.new("uint64_t *")
    check(lib.rdt_cuda_stream(int(data.__dlpack_device__()[1]), stream))
    # The other library makes this stream wait for its own, and copies run on it.
    capsule = dlpack.capsule_from(data, stream=int(stream[0]))
    tensor, fixed = dlpack.tensor_of(capsule)
    shape = tuple(tensor.shape[: tensor.ndim])
    strides = tuple(tensor.strides[: tensor.ndim]) if tensor.strides else None
    _need_contiguous(data, shape, strides)
    address = (tensor.data or 0) + tensor.byte_offset
    array = CudaArray(address, shape, dlpack.dtype_of(tensor), fixed, capsule)
    if array.nbytes:
        check(lib.rdt_cuda_wait(array.pointer, stream[0]))
    return array
