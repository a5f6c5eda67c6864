# SPDX-License-Identifier: Apache-2.0
"""The device of plugin/pluggable_device.c, in a process whose TEST_DEVICE_LIBRARY names it.

TEST_CUDA_DRIVER is a driver (cuda_driver.c) of which the process uses a device already, as TensorFlow uses
that of NVIDIA.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

from tensorflow.python.framework import load_library


def load() -> None:
    """Let TensorFlow have it, if there is one. Call this before anything runs."""
    if library := os.environ.get("TEST_DEVICE_LIBRARY"):
        load_library.load_pluggable_device_library(library)
    if driver := os.environ.get("TEST_CUDA_DRIVER"):
        cuda, context = ctypes.CDLL(driver), ctypes.c_void_p()
        assert cuda.cuInit(0) == 0
        assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0


def _loaded(name: str) -> ctypes.CDLL | None:
    """The library of this process whose file is called so."""
    maps = Path("/proc/self/maps").read_text().splitlines()
    paths = [line.split()[-1] for line in maps if name in line]
    return ctypes.CDLL(paths[0]) if paths else None


def pinned() -> int | None:
    """The bytes of host memory that are registered with a driver of CUDA; None if this process has none."""
    driver = _loaded("libcuda.so")
    if driver is None:
        return None
    driver.standin_pinned.restype = ctypes.c_uint64
    return int(driver.standin_pinned())


def trim() -> int:
    """Trim the arena, and return the bytes that were given back."""
    plugin = _loaded("librdmatensor_tensorflow_")
    assert plugin
    plugin.rdt_tf_arena_trim.restype = ctypes.c_uint64
    return int(plugin.rdt_tf_arena_trim())


def numbers(text: str) -> dict[str, int]:
    """Set numbers that the library exports ("NAME=VALUE ..."), and read those, "waiting" and "used"."""
    library = ctypes.CDLL(os.environ["TEST_DEVICE_LIBRARY"])
    numbers = {}
    for each in (*text.split(), "waiting", "used"):
        name, _, value = each.partition("=")
        number = ctypes.c_int64.in_dll(library, name)
        if value:
            number.value = int(value)
        numbers[name] = number.value
    return numbers
