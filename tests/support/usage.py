# SPDX-License-Identifier: Apache-2.0
"""What this process holds of the system: chaos.py compares it before and after."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

SETTLE_S = 60.0


def usage() -> dict[str, int]:
    """Descriptors, threads, and mappings of shared memory."""
    maps = Path("/proc/self/maps").read_text().splitlines()
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),  # noqa: PTH208 - nothing else is opened
        "threads": len(os.listdir("/proc/self/task")),  # noqa: PTH208
        "mappings": sum("memfd:" in line for line in maps),
    }


def memory_sizes() -> list[int]:
    """Of the mappings of shared memory, in bytes."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    ranges = [line.split()[0].split("-") for line in lines if "memfd:" in line]
    return sorted(int(end, 16) - int(start, 16) for start, end in ranges)


def grown(
    measure: Callable[..., dict[str, int]],
    before: dict[str, int],
    slack: dict[str, int],
    settle: float = SETTLE_S,
) -> dict[str, str]:
    """What is more than before by more than `slack`, also after `settle` seconds: "12 to 15" by name."""
    end = time.monotonic() + settle
    while True:
        now = measure()
        more = {
            name: f"{before[name]} to {count}"
            for name, count in now.items()
            if count > before[name] + slack.get(name, 0)
        }
        if not more or time.monotonic() > end:
            return more
        time.sleep(0.1)
