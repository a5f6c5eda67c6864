# SPDX-License-Identifier: Apache-2.0
"""Sizes, times and rates as people write them.

Measured amounts are in powers of ten: "17.4 MB". Sizes that somebody chose, such as limits and the sizes of
operations, are in powers of two: "64 KiB".
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_Units = Sequence[tuple[str, float]]

_BYTES: _Units = (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("KB", 1e3), ("B", 1))
_BINARY: _Units = (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10), ("B", 1))
_TIMES: _Units = (("s", 1.0), ("ms", 1e-3), ("us", 1e-6))
_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
_PREFIXES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}
_NUMBER = r"(\d+(?:\.\d+)?)\s*"


def size(nbytes: float) -> str:
    """Return a measured number of bytes with three digits: "17.4 MB", in powers of ten."""
    return _scaled(nbytes, _BYTES) if nbytes >= 999.5 else f"{nbytes:.0f} B"


def binary_size(nbytes: float) -> str:
    """Return a chosen number of bytes: "64 KiB", in powers of two."""
    unit, scale = next((each for each in _BINARY if nbytes >= each[1]), _BINARY[-1])
    return f"{nbytes / scale:.4g} {unit}"


def duration(seconds: float) -> str:
    """Return a time with three digits: "12.3 ms"."""
    return _scaled(seconds, _TIMES)


def count(number: int, noun: str) -> str:
    """Return a number of things: "1 tensor", "2 tensors"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def bandwidth(text: str) -> float:
    """Read bytes per second from "100Gbit" or "12.5GB"; "/s" may follow. Raises ValueError otherwise."""
    match = re.fullmatch(_NUMBER + r"([kmgtKMGT]?)(bit|b|B)(?:/s|ps)?", text.strip())
    if match is None or float(match[1]) == 0:
        raise ValueError(f"bandwidth {text!r}: expected a value such as 100Gbit or 12.5GB")
    return float(match[1]) * _PREFIXES[match[2].lower()] / (1 if match[3] == "B" else 8)


def latency(text: str) -> float:
    """Read seconds from "2us". Raises ValueError otherwise."""
    match = re.fullmatch(_NUMBER + r"(s|ms|us|ns)", text.strip())
    if match is None:
        raise ValueError(f"latency {text!r}: expected a value such as 2us or 0.1ms")
    return float(match[1]) * _SECONDS[match[2]]


def short_task(task: str) -> str:
    """Shorten "/job:ps/replica:0/task:0" to "ps:0". Other text stays as it is."""
    match = re.fullmatch(r"/job:([^/]+)(?:/replica:(\d+))?/task:(\d+)", task)
    if match is None:
        return task
    job, replica, index = match.groups()
    return f"{job}:{index}" if replica in (None, "0") else f"{job}:{replica}:{index}"


def _scaled(value: float, units: _Units) -> str:
    # A value that would be rounded to 1000 belongs to the next unit.
    unit, scale = next((each for each in units if value >= 0.9995 * each[1]), units[-1])
    amount = value / scale
    return f"{amount:.0f} {unit}" if amount >= 999.5 else f"{amount:.3g} {unit}"
