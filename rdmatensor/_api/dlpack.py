# SPDX-License-Identifier: Apache-2.0
"""Turns tensors of other libraries into arrays over the same memory, and back, by DLPack 1.

The names and layouts are those of dlpack.h. A capsule that nobody renames frees its tensor when it is
dropped, so an array that holds the capsule keeps the memory alive.
"""

from __future__ import annotations

import ctypes
from enum import IntFlag
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import RdmaError, UsageError

# DLPack's numbers of devices whose memory the processor addresses, and of CUDA's.
_HOST_DEVICES, _CUDA_DEVICES = (1, 3, 11), (2, 13)
_NAME, _VERSIONED = b"dltensor", b"dltensor_versioned"
_READ_ONLY, _IS_COPIED = 1, 2
# Of DLDataTypeCode, what numpy has, by its letter; and what ml_dtypes has.
_NUMPY = {0: "i", 1: "u", 2: "f", 5: "c", 6: "b"}
_ML_DTYPES = {
    (4, 16): "bfloat16",
    (7, 8): "float8_e3m4",
    (8, 8): "float8_e4m3",
    (9, 8): "float8_e4m3b11fnuz",
    (10, 8): "float8_e4m3fn",
    (11, 8): "float8_e4m3fnuz",
    (12, 8): "float8_e5m2",
    (13, 8): "float8_e5m2fnuz",
    (14, 8): "float8_e8m0fnu",
}


class MemoryKind(IntFlag):
    """Where memory lies: on the host, on a CUDA device, or on another accelerator."""

    HOST = 1
    CUDA = 2
    OTHER = 4


def kind_of(data: Any) -> MemoryKind:
    """Return where the memory of `data` lies, by what `data` says. Raises UsageError if it has none."""
    try:
        if hasattr(data, "__cuda_array_interface__"):
            return MemoryKind.CUDA
        if not hasattr(data, "__dlpack_device__"):
            return MemoryKind.HOST
        device = data.__dlpack_device__()[0]
    except RdmaError:  # of a region of ours
        raise
    except (BufferError, RuntimeError, ValueError) as error:
        raise UsageError(f"the {type(data).__name__} does not share its memory: {error}") from error
    if device in _HOST_DEVICES:
        return MemoryKind.HOST
    return MemoryKind.CUDA if device in _CUDA_DEVICES else MemoryKind.OTHER


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Versioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager_ctx", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


_is_valid = ctypes.pythonapi.PyCapsule_IsValid
_is_valid.argtypes = (ctypes.py_object, ctypes.c_char_p)
_get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_get_pointer.argtypes = (ctypes.py_object, ctypes.c_char_p)
_get_pointer.restype = ctypes.c_void_p


class _Memory:
    """Elements that a capsule keeps alive, as numpy asks for them."""

    def __init__(self, capsule: Any, tensor: _Tensor, itemsize: int, read_only: bool) -> None:
        self._capsule = capsule
        strides = tensor.strides and tuple(
            itemsize * each for each in tensor.strides[: tensor.ndim]
        )
        self.__array_interface__ = {
            "data": (tensor.data + tensor.byte_offset, read_only),
            "shape": tuple(tensor.shape[: tensor.ndim]),
            "strides": strides or None,
            "typestr": f"|V{itemsize}",
            "version": 3,
        }


def array_of(data: Any) -> npt.NDArray[Any]:
    """Return an array over the memory of `data`, which has `__dlpack__`.

    It is strided if `data` is, read-only unless `data` says that it may be written, and keeps the memory
    alive. Raises UsageError for memory that the processor cannot address, and for types without a dtype.
    """
    kind = kind_of(data)
    if kind is not MemoryKind.HOST:
        raise UsageError(
            f"the {type(data).__name__} lies in memory of kind {kind.name}: copy it to the host"
        )
    capsule = capsule_from(data)
    tensor, fixed = tensor_of(capsule)
    shape = tuple(tensor.shape[: tensor.ndim])
    dtype = dtype_of(tensor)
    if 0 in shape:
        return np.empty(shape, dtype)
    return np.asarray(_Memory(capsule, tensor, dtype.itemsize, fixed)).view(dtype)


def capsule_of(array: npt.NDArray[Any], **options: Any) -> Any:
    """Return a capsule with the memory of `array`; `options` are those of `__dlpack__`."""
    dtype = array.dtype
    if dtype.name not in _ML_DTYPES.values():
        return array.__dlpack__(**options)
    capsule = array.view(f"u{dtype.itemsize}").__dlpack__(**options)
    tensor, _ = tensor_of(capsule)
    tensor.code = next(code for (code, _), name in _ML_DTYPES.items() if name == dtype.name)
    return capsule


def capsule_from(data: Any, **options: Any) -> Any:
    """Return a capsule with the memory of `data`. Raises UsageError if it does not share it."""
    try:
        try:
            return data.__dlpack__(**options, max_version=(1, 0))
        except TypeError:  # a producer that knows DLPack 0 only
            return data.__dlpack__(**options)
    except (BufferError, RuntimeError) as error:
        raise UsageError(f"the {type(data).__name__} does not share its memory: {error}") from error


def tensor_of(capsule: Any) -> tuple[_Tensor, bool]:
    """Return the tensor in a capsule, and whether it must not be written. Version 0 does not tell."""
    if _is_valid(capsule, _VERSIONED):
        managed = _Versioned.from_address(_get_pointer(capsule, _VERSIONED))
        if managed.major == 1:
            # What is written into a copy would be lost.
            return managed.tensor, bool(managed.flags & (_READ_ONLY | _IS_COPIED))
        raise UsageError(f"the tensor comes by DLPack {managed.major}: this package knows 1")
    return _Tensor.from_address(_get_pointer(capsule, _NAME)), True


def dtype_of(tensor: _Tensor) -> np.dtype[Any]:
    """Return the dtype of a tensor's elements. Raises UsageError if there is none."""
    name = _ML_DTYPES.get((tensor.code, tensor.bits))
    if tensor.lanes == 1 and name:
        try:
            import ml_dtypes
        except ImportError:
            raise UsageError(f"a tensor of {name} needs ml_dtypes: pip install ml_dtypes") from None
        found: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
        return found
    if tensor.lanes == 1 and tensor.code in _NUMPY and tensor.bits in (8, 16, 32, 64, 128):
        return np.dtype(f"{_NUMPY[tensor.code]}{tensor.bits // 8}")
    raise UsageError(
        f"a tensor of DLPack's type {tensor.code}, {tensor.bits} bits and {tensor.lanes} lanes has no dtype"
    )
