# SPDX-License-Identifier: Apache-2.0
"""Small strided arrays, and CUDA memory, as the local memory of operations: copied, and copied back."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from .._ffi import ffi
from ..errors import UsageError
from . import buffers, cuda
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


class Staged(NamedTuple):
    """The arrays of an operation as arrays on the host. Those of CUDA devices are copies."""

    array: Any
    out: Any
    #: Each copy, and what it is a copy of.
    copies: list[tuple[Array, Any]]

    def original(self, result: Any) -> Any:
        """Return what the caller gave in the place of `result`, which is an array of the operation."""
        return next((given for copy, given in self.copies if copy is result), result)

    def back(self, result: Any) -> Callable[[], None] | None:
        """Return what puts `result` into the CUDA memory of which it is a copy; None if it is none."""
        given = self.original(result)
        return None if given is result else cuda.CopyToDevice(cuda.writable(given), result)


class Copies:
    """Takes the local memory of the operations of a device or a group, and counts the bytes copied."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.nbytes = 0

    def source(self, data: Any) -> Any:
        """Return the bytes of `data` for reading as buffers.source does, or of a copy on the host."""
        try:
            return buffers.source(data)
        except UsageError:
            if cuda.is_cuda(data):
                return from_buffer(self._from_device(data).reshape(-1).view(np.uint8))
            array = _strided(np.asarray(data) if buffers.converts(data) else data)
            if array is None:
                raise
            return from_buffer(self._copy(array))

    def target(self, data: Any) -> tuple[Any, Callable[[], None] | None]:
        """Return the bytes of `data` for writing as buffers.target does, and None.

        If it is strided, or in CUDA memory, the bytes are those of new memory. Call the second result once
        they have come.
        """
        try:
            return buffers.target(data), None
        except UsageError:
            if cuda.is_cuda(data):
                given = cuda.writable(data)
                host = np.empty(given.nbytes, np.uint8)
                self._count(host)
                return from_buffer(_BYTES, host, True), cuda.CopyToDevice(given, host)
            array = _strided(data)
            if array is None or not _is_writable(array):
                raise
            copy = self._copy(array)
            return from_buffer(_BYTES, copy, True), CopyBack(array, copy)

    def on_device(self, data: Any, writes: bool) -> cuda.CudaArray | None:
        """Return the CUDA memory of `data`, for operations that CUDA executes; None if it lies elsewhere.

        With `writes`, it has to be writable.
        """
        if data.__class__ is np.ndarray or not cuda.is_cuda(data):
            return None
        return cuda.writable(data) if writes else cuda.array_of(data)

    def pair(self, array: Any, out: Any) -> tuple[Any, Any, CopyBack | None]:
        """Return an operation's arrays, of which one may be None, or copies of those that are strided.

        Call the third result, unless it is None, once the operation has succeeded.
        """
        same = out is array
        if _is_contiguous(array) and (same or _is_contiguous(out)):
            return array, out, None
        source, result, back = _strided(array), _strided(out), None
        if result is not None and _is_writable(result):
            out = self._copy(result)  # with its elements: not each operation writes all of them
            back = CopyBack(result, out)
        if same:
            return out, out, back
        return array if source is None else self._copy(source), out, back

    def staged(self, array: Any, out: Any) -> Staged | None:
        """Return an operation's arrays, of which any may be None, on the host; None if they are there."""
        copies: list[tuple[Array, Any]] = []
        hosts = []
        for each in (array, out):
            known = next((copy for copy, given in copies if given is each), each)
            if known is each and cuda.is_cuda(each):
                known = self._from_device(each)
                copies.append((known, each))
            hosts.append(known)
        return Staged(hosts[0], hosts[1], copies) if copies else None

    def _from_device(self, data: Any) -> Array:
        host = cuda.array_of(data).to_host()
        self._count(host)
        return host

    def _copy(self, array: Array) -> Array:
        self._count(array)
        return np.ascontiguousarray(array)

    def _count(self, array: Array) -> None:
        with self._lock:
            self.nbytes += array.nbytes


def _is_contiguous(data: Any) -> bool:
    """Return whether `data` is None or an array that is neither strided nor another library's."""
    return data is None or (data.__class__ is np.ndarray and data.flags.c_contiguous)


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
