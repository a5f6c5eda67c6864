# SPDX-License-Identifier: Apache-2.0
"""Sizes and times as people write them."""

from __future__ import annotations

import re

from .errors import AnalysisError

_PREFIXES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}
_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
_NUMBER = r"(\d+(?:\.\d+)?)\s*"


def bandwidth(text: str) -> float:
    """Bytes per second of "100Gbit" or "12.5GB" (powers of ten, "/s" is allowed)."""
    match = re.fullmatch(_NUMBER + r"([kmgtKMGT]?)(bit|b|B)(?:/s|ps)?", text.strip())
    if match is None or float(match[1]) == 0:
        raise AnalysisError(f"bandwidth {text!r}: give the like of 100Gbit or 12.5GB")
    scale = _PREFIXES[match[2].lower()]
    return float(match[1]) * scale / (1 if match[3] == "B" else 8)


def latency(text: str) -> float:
    """Seconds of "2us"."""
    match = re.fullmatch(_NUMBER + r"(s|ms|us|ns)", text.strip())
    if match is None:
        raise AnalysisError(f"latency {text!r}: give the like of 2us or 0.1ms")
    return float(match[1]) * _SECONDS[match[2]]


def size(count: float) -> str:
    """A number of bytes: "17.4 MB" (powers of ten)."""
    for unit, scale in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        # What would be rounded to 1000 belongs to the next unit.
        if count >= 0.9995 * scale:
            value = count / scale
            return f"{value:.0f} {unit}" if value >= 999.5 else f"{value:.3g} {unit}"
    return f"{count:.0f} B"


def duration(seconds: float) -> str:
    """A time: "12.3 ms"."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= 0.9995 * scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"


def short(task: str) -> str:
    """ "ps:0" for "/job:ps/replica:0/task:0"."""
    match = re.fullmatch(r"/job:([^/]+)/replica:(\d+)/task:(\d+)", task)
    if match is None:
        return task
    return f"{match[1]}:{match[3]}" if match[2] == "0" else f"{match[1]}:{match[2]}:{match[3]}"


def count(number: int, noun: str) -> str:
    """ "1 tensor", "2 tensors"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
