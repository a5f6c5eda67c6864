# SPDX-License-Identifier: Apache-2.0
"""Ways that take turns, so that what the machine does meanwhile falls on all of them alike."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field


@dataclass
class Samples:
    """Of one way: all samples, and the median of each turn."""

    all: list[float] = field(default_factory=list)
    turns: list[float] = field(default_factory=list)

    def add(self, turn: list[float]) -> None:
        """The samples of one more turn; at least one."""
        self.all += turn
        self.turns.append(statistics.median(turn))


def in_turns(ways: Mapping[str, Callable[[], list[float]]], turns: int) -> dict[str, Samples]:
    """Call each of the ways `turns` times; the next turn begins with the next way."""
    samples = {name: Samples() for name in ways}
    names = list(ways)
    for turn in range(turns):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            samples[name].add(ways[name]())
    return samples
