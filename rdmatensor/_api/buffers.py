# SPDX-License-Identifier: Apache-2.0
"""The local memory of one-sided operations: any object with C-contiguous bytes. It is never copied."""

from __future__ import annotations

import math
from enum import IntFlag
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from .._ffi import ffi, lib
from ..errors import UsageError, check
from .arguments import whole

Array: TypeAlias = npt.NDArray[Any]
if TYPE_CHECKING:
    from typing_extensions import Buffer as _Buffer

    Buffer: TypeAlias = _Buffer | Array
else:
    Buffer = Any
Shape: TypeAlias = int | tuple[int, ...] | list[int]

_MOST_BYTES = 2**63 - 1
_BYTES = ffi.typeof("char[]")
_ndarray = np.ndarray
# DLPack's numbers of devices whose memory the processor addresses, and of CUDA's.
_HOST_DEVICES, _CUDA_DEVICES = (1, 3, 11), (2, 13)
from_buffer = ffi.from_buffer


class MemoryKind(IntFlag):
    """Where memory lies: on the host, on a CUDA device, or on another accelerator."""

    HOST = 1
    CUDA = 2
    OTHER = 4


def kind_of(data: Any) -> MemoryKind:
    """Return where the memory of `data` lies, according to `data` itself."""
    if hasattr(data, "__cuda_array_interface__"):
        return MemoryKind.CUDA
    if not hasattr(data, "__dlpack_device__"):
        return MemoryKind.HOST
    device = data.__dlpack_device__()[0]
    if device in _HOST_DEVICES:
        return MemoryKind.HOST
    return MemoryKind.CUDA if device in _CUDA_DEVICES else MemoryKind.OTHER


def source(data: Any) -> Any:
    """Return the bytes of `data` for reading, as a cdata `char[]` that keeps `data` alive."""
    try:
        return _checked(data, from_buffer(data))
    except (TypeError, ValueError, BufferError) as error:
        if hasattr(data, "__array__") and not isinstance(data, np.ndarray):
            return source(np.asarray(data))
        raise unusable(data, error) from None


def memory(data: Any) -> Any:
    """Return the bytes of `data` as source does, but refuse what would have to be converted to a copy."""
    try:
        return _checked(data, from_buffer(data))
    except (TypeError, ValueError, BufferError) as error:
        raise unusable(data, error) from None


def as_array(data: Any) -> Array:
    """Return the C-contiguous memory of `data` as an array."""
    return data if isinstance(data, np.ndarray) else np.frombuffer(data, np.uint8)


def target(data: Any) -> Any:
    """Return the bytes of `data` for writing."""
    try:
        local = from_buffer(_BYTES, data, True)
        if data.dtype.hasobject if data.__class__ is _ndarray else holds_objects(data):
            raise TypeError("it holds Python objects, which have no bytes to send")
        return local
    except (TypeError, ValueError, BufferError) as error:
        raise unusable(data, error) from None


def holds_objects(data: Any) -> bool:
    """Return whether the bytes of `data` are addresses of Python objects, which mean nothing elsewhere."""
    if data.__class__ is memoryview:
        return "O" in data.format
    return getattr(getattr(data, "dtype", None), "hasobject", False) is True


def _checked(data: Any, local: Any) -> Any:
    if holds_objects(data):
        raise TypeError("it holds Python objects, which have no bytes to send")
    return local


def unusable(data: Any, error: Exception) -> UsageError:
    """Return the error that says why `data` cannot be a local buffer, and what to pass instead."""
    kind = type(data).__name__
    if isinstance(data, str):
        return UsageError("text has no bytes of its own: pass data.encode()")
    if isinstance(data, np.ndarray) and not data.flags.c_contiguous and not holds_objects(data):
        return UsageError(
            f"the array of shape {data.shape} is not C-contiguous: pass numpy.ascontiguousarray(it)"
        )
    if is_read_only(data) and not holds_objects(data):
        return UsageError(
            f"the memory of this {kind} is read-only: pass a writable array, or register it with access READ"
        )
    return UsageError(
        f"{kind} cannot be used as a local buffer ({error}): pass bytes, a bytearray, a memoryview "
        "or a numpy array that is C-contiguous, and writable if data is to be read into it"
    )


def is_read_only(data: Any) -> bool:
    """Return whether `data` is a buffer that cannot be written."""
    try:
        return memoryview(data).readonly
    except (TypeError, ValueError, BufferError):
        return False


def extent(shape: Shape, dtype: npt.DTypeLike) -> tuple[tuple[int, ...], np.dtype[Any], int]:
    """Return the dimensions, dtype and size in bytes of an array. Raises UsageError if there is no such
    array.
    """
    kind = np.dtype(dtype)
    if kind.hasobject:
        raise UsageError(f"dtype {kind} holds Python objects, which have no bytes to send")
    given = shape if isinstance(shape, list | tuple) else (shape,)
    dims = tuple(whole(f"a dimension of shape {shape!r}", dim, most=_MOST_BYTES) for dim in given)
    nbytes = math.prod(dims) * kind.itemsize
    if nbytes > _MOST_BYTES:
        raise UsageError(
            f"an array of shape {shape!r} and dtype {kind} has {nbytes} bytes: too many"
        )
    return dims, kind, nbytes


def view(pointer: Any, nbytes: int, writable: bool = True) -> Array:
    """Return a uint8 array over C memory. It keeps `pointer` alive, and what its destructor holds."""
    memory = memoryview(ffi.buffer(pointer, nbytes))
    return np.frombuffer(memory if writable else memory.toreadonly(), dtype=np.uint8)


def shareable(nbytes: int) -> Any:
    """Return a cdata pointer that owns `nbytes` zero bytes, which any transport can share with peers."""
    out = ffi.new("void **")
    check(lib.rdt_memory_alloc(nbytes, out))
    return ffi.gc(ffi.cast("char *", out[0]), lib.rdt_memory_free, nbytes)


def empty(shape: Shape, dtype: npt.DTypeLike = np.uint8) -> Array:
    """Return a zero-filled array in memory that Device.register accepts for any transport.

    The memory is freed with the last view of it. Raises DeviceError if no memory is left, and UsageError for
    a shape without bytes.
    """
    dims, kind, nbytes = extent(shape, dtype)
    return view(shareable(nbytes), nbytes).view(kind).reshape(dims)
