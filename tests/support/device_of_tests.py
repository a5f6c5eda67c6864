# SPDX-License-Identifier: Apache-2.0
"""The device of plugin/pluggable_device.c, in a process whose TEST_DEVICE_LIBRARY names it."""

from __future__ import annotations

import ctypes
import os

from tensorflow.python.framework import load_library


def load() -> None:
    """Let TensorFlow have it, if there is one. Call this before anything runs."""
    if library := os.environ.get("TEST_DEVICE_LIBRARY"):
        load_library.load_pluggable_device_library(library)


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
