# SPDX-License-Identifier: Apache-2.0
"""The local memory of operations: any object with C-contiguous bytes, which are not copied here."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from .._ffi import ffi, lib
from ..errors import UsageError, check
from .arguments import whole
from .dlpack import MemoryKind, array_of, kind_of

Array: TypeAlias = npt.NDArray[Any]


class SupportsDLPack(Protocol):
    """A tensor of any library that shares its memory by DLPack, such as torch.Tensor and jax.Array."""

    def __dlpack__(self) -> Any:
        """Return a capsule with the tensor."""

    def __dlpack_device__(self) -> tuple[Any, int]:
        """Return the kind of the device where the memory lies, and its number."""


class SupportsCudaArray(Protocol):
    """An array in CUDA memory by version 3 of its interface, such as those of Numba and CuPy."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The address, the shape, the dtype and the stream."""


if TYPE_CHECKING:
    from typing_extensions import Buffer as _Buffer

    Buffer: TypeAlias = _Buffer | Array | SupportsDLPack | SupportsCudaArray
else:
    Buffer = Any
Shape: TypeAlias = int | tuple[int, ...] | list[int]

_MOST_BYTES = 2**63 - 1
_BYTES = ffi.typeof("char[]")
_ndarray = np.ndarray
from_buffer = ffi.from_buffer


def source(data: Any) -> Any:
    """Return the bytes of `data` for reading, as a cdata `char[]` that keeps `data` alive."""
    try:
        return memory(data)
    except UsageError:
        if not converts(data):
            raise
        return memory(np.asarray(data))


def converts(data: Any) -> bool:
    """Return whether `data` makes an array of itself, and shares its memory in no other way.

    An array of a device's memory may be made late: its library may still be copying when it returns.
    """
    shares = hasattr(data, "__dlpack__") or kind_of(data) is not MemoryKind.HOST
    return hasattr(data, "__array__") and not shares


def memory(data: Any) -> Any:
    """Return the bytes of `data` as source does, but refuse what would have to be converted to a copy."""
    try:
        local = from_buffer(shared(data))
        if holds_objects(data):
            raise TypeError("it holds Python objects, which have no bytes to send")
        return local
    except (TypeError, ValueError, BufferError) as error:
        raise unusable(data, error) from None


def target(data: Any) -> Any:
    """Return the bytes of `data` for writing."""
    try:
        local = from_buffer(_BYTES, shared(data), True)
        if data.dtype.hasobject if data.__class__ is _ndarray else holds_objects(data):
            raise TypeError("it holds Python objects, which have no bytes to send")
        return local
    except (TypeError, ValueError, BufferError) as error:
        raise unusable(data, error) from None


def shared(data: Any) -> Any:
    """Return an array over the memory of another library's tensor, and anything else as it is."""
    if data.__class__ is _ndarray or not hasattr(data, "__dlpack__"):
        return data
    return array_of(data)


def as_array(data: Any) -> Array:
    """Return the C-contiguous memory of `data` as an array."""
    data = shared(data)
    return data if isinstance(data, np.ndarray) else np.frombuffer(data, np.uint8)


def holds_objects(data: Any) -> bool:
    """Return whether the bytes of `data` are addresses of Python objects, which mean nothing elsewhere."""
    if data.__class__ is memoryview:
        return "O" in data.format
    return getattr(getattr(data, "dtype", None), "hasobject", False) is True


def unusable(data: Any, error: Exception) -> UsageError:
    """Return the error that says why `data` cannot be a local buffer, and what to pass instead."""
    kind = type(data).__name__
    if isinstance(error, UsageError):
        return error
    if isinstance(data, str):
        return UsageError("text has no bytes of its own: pass data.encode()")
    array = shared(data)
    if isinstance(array, np.ndarray) and not array.flags.c_contiguous and not holds_objects(data):
        what = "numpy.ascontiguousarray(it)" if array is data else "a contiguous copy"
        return UsageError(f"the {kind} of shape {array.shape} is not C-contiguous: pass {what}")
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
