# SPDX-License-Identifier: Apache-2.0
"""Another library that computes in CUDA memory: tensors of its own, on a stream of its own.

It calls the driver itself, which is cuda_driver.c or, for `make gpu`, NVIDIA's. Processes that use it call
load() first, before anything else opens a driver. NVIDIA's driver fails on nobody's demand and does not
count, so what asks for that is skipped, and expectations of counts hold.
"""

from __future__ import annotations

import copy
import ctypes
import itertools
import os
from typing import Any

import numpy as np
import numpy.typing as npt

from rdmatensor._api import dlpack

# Set by .ci/gpu.
ON_GPU = os.environ.get("RDMATENSOR_TEST_GPU") == "1"
_driver: Any = None
_late = False
_CUDA = 2
_MOST_STREAMS = 8  # of each device, which tensors take in turn
_streams: dict[int, list[ctypes.c_void_p]] = {}
_readers: dict[int, ctypes.c_void_p] = {}
_taken = itertools.count()
_busy: dict[int, ctypes.c_uint64] = {}


def load(path: str) -> None:
    """Make the library at `path` the driver of this process."""
    global _driver
    _driver = ctypes.CDLL(path)
    _call("cuInit", 0)


def second() -> int:
    """Return the number of the second device, or of the only one."""
    count = ctypes.c_int()
    _call("cuDeviceGetCount", ctypes.byref(count))
    return min(1, count.value - 1)


def delay(microseconds: int) -> None:
    """Let each piece of work take so long. On a GPU, tensors come late by as much work as takes some ms."""
    global _late
    _late = microseconds > 0
    if not ON_GPU:
        _driver.standin_delay(ctypes.c_uint(microseconds))


def fail(function: str, code: int = 700) -> None:
    """Let every call of the function fail. "": none does."""
    _driver.standin_fail(function.encode(), code)


def hold(copies: int) -> None:
    """Let the devices begin so many more copies, and then no work at all. -1: until this is called again."""
    _driver.standin_hold(copies)


def pinned() -> int:
    """Return how many bytes of host memory are registered."""
    assert _count("standin_unmapped_too_early") == 0
    return _count("standin_pinned")


def _count(name: str) -> int:
    count = getattr(_driver, name)
    count.restype = ctypes.c_uint64
    return int(count())


def expect_allocated(nbytes: int) -> None:
    """Check how many bytes are allocated on all devices."""
    assert ON_GPU or _count("standin_allocated") == nbytes, _count("standin_allocated")


def expect_imported(nbytes: int) -> None:
    """Check how many bytes of other processes are open here."""
    assert ON_GPU or _count("standin_imported") == nbytes, _count("standin_imported")


def expect_no_early_free() -> None:
    """Check that no memory was freed that another process had open, which CUDA does not permit."""
    assert ON_GPU or _count("standin_freed_too_early") == 0


def allocated() -> int:
    """Return the bytes that are allocated on all devices."""
    return 0 if ON_GPU else _count("standin_allocated")


def _stream(device: int) -> ctypes.c_void_p:
    made = ctypes.c_void_p()
    with _Current(device):
        _call("cuStreamCreate", ctypes.byref(made), 1)  # CU_STREAM_NON_BLOCKING
    return made


def _call(function: str, *arguments: Any) -> None:
    error = getattr(_driver, function)(*arguments)
    assert error == 0, f"{function} returns {error}"


class _Current:
    """A device that is current for this thread."""

    def __init__(self, device: int) -> None:
        self._context = ctypes.c_void_p()
        _call("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), device)

    def __enter__(self) -> None:
        _call("cuCtxPushCurrent_v2", self._context)

    def __exit__(self, *_: object) -> None:
        _call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))


class Tensor:
    """An array's values in the memory of a device. They come late, on the stream of the tensor.

    `own_stream` False: that is the default stream.
    """

    def __init__(
        self, array: npt.NDArray[Any], device: int = 0, own_stream: bool = True, room: bool = True
    ) -> None:
        self.device, self.shape, self.dtype = device, array.shape, array.dtype
        self.strides: tuple[int, ...] | None = None
        self._memory, self.stream = ctypes.c_uint64(), ctypes.c_void_p()
        self._source = np.ascontiguousarray(array)  # the driver may read it later
        with _Current(device):
            _call("cuMemAlloc_v2", ctypes.byref(self._memory), ctypes.c_size_t(array.nbytes or 1))
        if own_stream:
            streams = _streams.setdefault(device, [])
            if len(streams) < _MOST_STREAMS:
                streams.append(_stream(device))
            self.stream = streams[next(_taken) % len(streams)]
        self.set(self._source)

    def set(self, array: npt.NDArray[Any]) -> None:
        """Queue a copy of the values."""
        self._source = np.ascontiguousarray(array)
        self._copy(self._memory, self._source.ctypes.data, self._source.nbytes)

    def get(self) -> npt.NDArray[Any]:
        """Return the values, by a copy on another stream than any: all must be there already."""
        host = np.empty(self.shape, self.dtype)
        if self.device not in _readers:
            _readers[self.device] = _stream(self.device)
        other = _readers[self.device]
        with _Current(self.device):
            arguments = ctypes.c_uint64(host.ctypes.data), self._memory
            _call("cuMemcpyAsync", *arguments, ctypes.c_size_t(host.nbytes), other)
            _call("cuStreamSynchronize", other)
        return host

    def wait(self) -> None:
        """Wait for all that was queued."""
        with _Current(self.device):
            _call("cuStreamSynchronize", self.stream)

    def free(self) -> None:
        """Free the memory."""
        with _Current(self.device):
            _call("cuMemFree_v2", self._memory)

    def _copy(self, to: Any, source: int, nbytes: int) -> None:
        with _Current(self.device):
            if ON_GPU and _late:
                source = self._occupy(source, nbytes)
            arguments = to, ctypes.c_uint64(source), ctypes.c_size_t(nbytes)
            _call("cuMemcpyAsync", *arguments, self.stream)

    def _occupy(self, source: int, nbytes: int) -> int:
        """Return a copy of host memory on the device, after queueing work of some ms on the stream.

        The context is current. The driver would wait for the stream before it copies from the host.
        """
        size, given = ctypes.c_size_t(256 << 20), ctypes.c_uint64()
        busy = _busy.get(self.device)
        if busy is None:
            busy = _busy[self.device] = ctypes.c_uint64()
            _call("cuMemAlloc_v2", ctypes.byref(busy), size)
        _call("cuMemAlloc_v2", ctypes.byref(given), ctypes.c_size_t(nbytes or 1))
        # Neither is freed: that would wait for the stream.
        _call("cuMemcpyHtoD_v2", given, ctypes.c_void_p(source), ctypes.c_size_t(nbytes))
        for _ in range(50):
            _call("cuMemsetD8Async", busy, ctypes.c_ubyte(0), size, self.stream)
        return given.value

    def _let_wait(self, stream: int) -> None:
        """Let another stream wait for this tensor's."""
        event = ctypes.c_void_p()
        with _Current(self.device):
            _call("cuEventCreate", ctypes.byref(event), 0)
            _call("cuEventRecord", event, self.stream)
            _call("cuStreamWaitEvent", ctypes.c_void_p(stream), event, 0)
            _call("cuEventDestroy_v2", event)


class DLPackTensor(Tensor):
    """A tensor that other libraries get by DLPack."""

    def __dlpack_device__(self) -> tuple[int, int]:
        return _CUDA, self.device

    def __dlpack__(self, stream: int | None = None, **options: Any) -> Any:
        assert stream, "the consumer names no stream"
        self._let_wait(stream)
        # A capsule of numpy's, whose memory is elsewhere.
        capsule = dlpack.capsule_of(np.zeros(self.shape, self.dtype), **options)
        tensor, _ = dlpack.tensor_of(capsule)
        tensor.data, tensor.device_type, tensor.device_id = self._memory.value, _CUDA, self.device
        return capsule


class TrackedTensor(DLPackTensor):
    """A tensor that tracks gradients, as torch refuses to share it."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        raise RuntimeError("use var.detach()")


class InterfaceTensor(Tensor):
    """A tensor that other libraries get by the CUDA array interface."""

    version, read_only = 3, False
    start = 0

    def row(self, number: int) -> InterfaceTensor:
        """Return a row of a matrix, over the same memory."""
        part = copy.copy(self)
        part.shape = self.shape[1:]
        part.start = number * self.dtype.itemsize * self.shape[1]
        return part

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "data": (self._memory.value + self.start, self.read_only),
            "shape": self.shape,
            "strides": self.strides,
            "typestr": self.dtype.str,
            "version": self.version,
            "stream": self.stream.value,
        }

    def __array__(self, *arguments: Any, **options: Any) -> npt.NDArray[Any]:
        raise AssertionError("an array that its library copies to the host may come late")
