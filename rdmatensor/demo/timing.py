# SPDX-License-Identifier: Apache-2.0
"""Summaries of measured times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Distribution:
    """Median and spread of `count` times, in seconds."""

    count: int
    p10: float
    median: float
    p90: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Distribution:
        """Summarise `seconds`; ValueError if there are none."""
        if not seconds:
            raise ValueError("no times were measured")
        ordered = sorted(seconds)
        return cls(
            len(ordered), _quantile(ordered, 0.1), _quantile(ordered, 0.5), _quantile(ordered, 0.9)
        )

    def as_json(self) -> dict[str, float]:
        """The fields by name, in seconds."""
        return asdict(self)


def _quantile(ordered: Sequence[float], fraction: float) -> float:
    """Linear interpolation between the two nearest of the sorted values."""
    position = fraction * (len(ordered) - 1)
    below = int(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (position - below) * (ordered[above] - ordered[below])


def duration(seconds: float) -> str:
    """`seconds` with a unit that suits its size: "12.3 ms"."""
    if seconds >= 1:
        return f"{seconds:.2f} s"
    if seconds >= 0.9995e-3:  # what would be rounded to 1000 us
        return f"{seconds * 1e3:.3g} ms" if seconds < 0.1 else f"{seconds * 1e3:.0f} ms"
    return f"{seconds * 1e6:.3g} us"


def size(count: float) -> str:
    """A number of bytes with a unit that suits its size: "17.4 MB" (powers of ten)."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if count >= scale:
            return (
                f"{count / scale:.3g} {unit}"
                if count < 1e3 * scale
                else f"{count / scale:.0f} {unit}"
            )
    return f"{count:.0f} B"
