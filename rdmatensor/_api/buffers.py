# SPDX-License-Identifier: Apache-2.0
"""The local memory of one-sided operations: any object with C-contiguous bytes. It is never copied."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .._ffi import ffi, lib
from ..errors import UsageError, check

Array = npt.NDArray[Any]
Shape = int | tuple[int, ...] | list[int]

from_buffer = ffi.from_buffer


def source(data: Any) -> Any:
    """Returns the bytes of `data` for reading, as a cdata `char[]` that keeps `data` alive."""
    try:
        return from_buffer(data)
    except (TypeError, ValueError, BufferError) as error:
        if hasattr(data, "__array__") and not isinstance(data, np.ndarray):
            return source(np.asarray(data))
        raise unusable(data, error) from None


def target(data: Any) -> Any:
    """Returns the bytes of `data` for writing."""
    try:
        return from_buffer("char[]", data, require_writable=True)
    except (TypeError, ValueError, BufferError) as error:
        raise unusable(data, error) from None


def unusable(data: Any, error: Exception) -> UsageError:
    kind = type(data).__name__
    if isinstance(data, str):
        return UsageError("text has no bytes of its own: pass data.encode()")
    if isinstance(data, np.ndarray) and not data.flags.c_contiguous:
        return UsageError(
            f"the array of shape {data.shape} is not C-contiguous: pass numpy.ascontiguousarray(it)"
        )
    return UsageError(
        f"{kind} cannot be used as a local buffer ({error}): pass bytes, a bytearray, a memoryview "
        "or a numpy array that is C-contiguous, and writable if data is to be read into it"
    )


def extent(shape: Shape, dtype: npt.DTypeLike) -> tuple[tuple[int, ...], np.dtype[Any], int]:
    """Checks and returns shape, dtype and size in bytes of an array."""
    kind = np.dtype(dtype)
    if kind.hasobject:
        raise UsageError(f"dtype {kind} holds Python objects, which have no bytes to send")
    dims = (shape,) if isinstance(shape, int | np.integer) else tuple(shape)
    nbytes = kind.itemsize
    for dim in dims:
        if dim < 0:
            raise UsageError(f"shape {dims} has a negative dimension")
        nbytes *= int(dim)
    return tuple(int(dim) for dim in dims), kind, nbytes


def view(pointer: Any, nbytes: int, writable: bool = True) -> Array:
    """Returns a uint8 array over C memory. It keeps `pointer` alive, and what its destructor holds."""
    memory = memoryview(ffi.buffer(pointer, nbytes))
    return np.frombuffer(memory if writable else memory.toreadonly(), dtype=np.uint8)


def shareable(nbytes: int) -> Any:
    """Returns a cdata pointer that owns `nbytes` zero bytes, which any transport can share with peers."""
    out = ffi.new("void **")
    check(lib.rdt_memory_alloc(nbytes, out))
    return ffi.gc(ffi.cast("char *", out[0]), lib.rdt_memory_free, nbytes)


def empty(shape: Shape, dtype: npt.DTypeLike = np.uint8) -> Array:
    """Returns a zero-filled array in memory that Device.register accepts for any transport.

    The memory is freed with the last view of it. Raises DeviceError if there is no memory left, and
    UsageError for a shape without bytes.
    """
    dims, kind, nbytes = extent(shape, dtype)
    return view(shareable(nbytes), nbytes).view(kind).reshape(dims)
