# SPDX-License-Identifier: Apache-2.0
"""Small strided arrays as the local memory of operations: their elements are copied, and copied back."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from .._ffi import ffi
from ..errors import UsageError
from . import buffers
from .buffers import Array, from_buffer

#: The most bytes of such an array. A larger copy may take longer than the operation, so its caller makes it.
MOST_COPIED = 64 << 10
_BYTES = ffi.typeof("char[]")


class CopyBack:
    """Puts the result of an operation from a contiguous copy into the strided array, once. Thread-safe."""

    __slots__ = ("_lock", "_pair")

    def __init__(self, array: Array, copy: Array) -> None:
        self._pair: tuple[Array, Array] | None = (array, copy)
        self._lock = threading.Lock()

    def __call__(self) -> None:
        with self._lock:
            if self._pair is not None:
                np.copyto(*self._pair)
                self._pair = None


class Copies:
    """Takes the local memory of the operations of a device or a group, and counts the bytes copied."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.nbytes = 0

    def source(self, data: Any) -> Any:
        """Return the bytes of `data` for reading as buffers.source does, or of a copy if it is strided."""
        try:
            return buffers.source(data)
        except UsageError:
            converts = hasattr(data, "__array__") and not hasattr(data, "__dlpack__")
            array = _strided(np.asarray(data) if converts else data)
            if array is None:
                raise
            return from_buffer(self._copy(array))

    def target(self, data: Any) -> tuple[Any, CopyBack | None]:
        """Return the bytes of `data` for writing as buffers.target does, and None.

        If it is strided, the bytes are those of new memory. Call the second result once they have come.
        """
        try:
            return buffers.target(data), None
        except UsageError:
            array = _strided(data)
            if array is None or not _is_writable(array):
                raise
            copy = self._copy(array)
            return from_buffer(_BYTES, copy, True), CopyBack(array, copy)

    def pair(self, array: Any, out: Any) -> tuple[Any, Any, CopyBack | None]:
        """Return an operation's arrays, of which one may be None, or copies of those that are strided.

        Call the third result, unless it is None, once the operation has succeeded.
        """
        source, result, same = _strided(array), _strided(out), out is array
        back = None
        if result is not None and _is_writable(result):
            out = self._copy(result)  # with its elements: not each operation writes all of them
            back = CopyBack(result, out)
        if same:
            return out, out, back
        return array if source is None else self._copy(source), out, back

    def _copy(self, array: Array) -> Array:
        with self._lock:
            self.nbytes += array.nbytes
        return np.ascontiguousarray(array)


def _strided(data: Any) -> Array | None:
    """Return the array or tensor `data` as an array, if it is strided and small enough to be copied."""
    try:
        array = buffers.shared(data)
    except UsageError:
        return None
    if not isinstance(array, np.ndarray) or array.flags.c_contiguous:
        return None
    return None if array.nbytes > MOST_COPIED or array.dtype.hasobject else array


def _is_writable(array: Array) -> bool:
    """Return whether results can be put into `array`: no two of its elements may share memory."""
    extent = array.itemsize
    for stride, size in sorted(zip(map(abs, array.strides), array.shape, strict=True)):
        if size == 1:
            continue
        if stride < extent:
            return False
        extent += stride * (size - 1)
    return bool(array.flags.writeable)
