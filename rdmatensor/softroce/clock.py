# SPDX-License-Identifier: Apache-2.0
"""Measure the frequency of this machine's time stamp counter, which emulated processors share.

A guest whose processors are kept waiting would measure the wrong frequency. Its clock and its time-outs
would then be wrong for as long as it runs.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import platform
import time
from collections.abc import Callable

_RDTSC = bytes.fromhex("0f31 48c1e220 4809d0 c3")  # rdtsc; shl rdx, 32; or rax, rdx; ret
_SECONDS = 0.03
_TRIES = 20


@functools.cache
def tsc_khz() -> int:
    """Return the frequency in kHz, accurate to 0.1 %, or 0 if the counter cannot be read."""
    if platform.machine() != "x86_64":
        return 0
    try:
        code = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    except OSError:  # the system forbids memory that is both writable and executable
        return 0
    code.write(_RDTSC)
    held = ctypes.c_char.from_buffer(code)
    read = ctypes.CFUNCTYPE(ctypes.c_uint64)(ctypes.addressof(held))
    began, ticks = _sample(read)
    time.sleep(_SECONDS)
    ended, later = _sample(read)
    return round((later - ticks) * 1_000_000 / (ended - began))


def _sample(read: Callable[[], int]) -> tuple[int, int]:
    """Return a time in ns and the counter's value then, from the least interrupted of several tries."""
    tries = []
    for _ in range(_TRIES):
        before = time.monotonic_ns()
        ticks = read()
        after = time.monotonic_ns()
        tries.append((after - before, before, ticks))
    _, moment, ticks = min(tries)
    return moment, ticks
