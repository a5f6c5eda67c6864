# SPDX-License-Identifier: Apache-2.0
"""Measures several ways in turns, so that whatever else the machine does affects all of them alike."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field


@dataclass(frozen=True)
class Distribution:
    """Median, 10th and 90th percentile of `count` samples, in the samples' unit."""

    count: int
    p10: float
    median: float
    p90: float

    @classmethod
    def of(cls, samples: Sequence[float]) -> Distribution:
        """Summarise the samples, with linear interpolation between them. ValueError if there are none."""
        if not samples:
            raise ValueError("nothing was measured")
        several = samples if len(samples) > 1 else [*samples, *samples]
        tenths = statistics.quantiles(several, n=10, method="inclusive")
        return cls(len(samples), tenths[0], tenths[4], tenths[8])

    def as_json(self) -> dict[str, float]:
        """The fields by name."""
        return asdict(self)


@dataclass
class Samples:
    """The samples of one way, turn by turn."""

    blocks: list[list[float]] = field(default_factory=list)

    @property
    def all(self) -> list[float]:
        """The samples of all turns."""
        return [sample for block in self.blocks for sample in block]

    @property
    def turns(self) -> list[float]:
        """The median of each turn."""
        return [statistics.median(block) for block in self.blocks]

    @property
    def spread(self) -> Distribution:
        """Median and percentiles of all samples."""
        return Distribution.of(self.all)


def rotated(names: Sequence[str], turns: int) -> Iterator[list[str]]:
    """The order of the ways in each turn: every turn begins with the next one."""
    for turn in range(turns):
        first = turn % len(names)
        yield [*names[first:], *names[:first]]


def in_turns(ways: Mapping[str, Callable[[], list[float]]], turns: int) -> dict[str, Samples]:
    """Call each way once in each turn. A call returns its samples, at least one."""
    samples = {name: Samples() for name in ways}
    for names in rotated(list(ways), turns):
        for name in names:
            samples[name].blocks.append(ways[name]())
    return samples


def turn_ratios(slow: Sequence[float], fast: Sequence[float]) -> Distribution:
    """The ratios of what was measured in the same turn. ValueError if the numbers of turns differ."""
    return Distribution.of([a / b for a, b in zip(slow, fast, strict=True)])
