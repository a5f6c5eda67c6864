# SPDX-License-Identifier: Apache-2.0
"""Compute what each way to share a table costs, and how many partitions pay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from .placement import WAYS, Way


@dataclass(frozen=True)
class Size:
    """The size of a table, and what a batch of one process asks of it (sample.Use).

    Only measurements use `ids`.
    """

    rows: int
    width: int
    used: float
    longest: float
    ids: float = 0.0

    @property
    def share(self) -> float:
        """The share of the rows that a batch uses."""
        return self.used / self.rows

    def numbers(self, way: Way, size: int) -> tuple[float, float]:
        """Return what the time of a step grows with: how many numbers travel, and how many rows are used."""
        travelling = {
            "dense": float(self.rows),
            "gather": self.used,
            "owners": self.longest * size,  # parts are as long as the longest
        }
        return travelling[way] * self.width, self.used

    def sent_bytes(self, way: Way, size: int) -> float:
        """Return how many bytes a process sends in a step, in the best case."""
        travelling = self.numbers(way, size)[0] * 4
        if way == "dense":
            return 2 * travelling * (size - 1) / size
        if way == "gather":
            return travelling * (size - 1)
        return 2 * travelling * (size - 1) / size


@dataclass(frozen=True)
class Costs:
    """Seconds of a step, by way: fixed ones, per number that travels, and per row that is used."""

    of: Mapping[Way, tuple[float, float, float]]

    def seconds(self, way: Way, table: Size, size: int) -> float:
        """Return the predicted seconds of a step."""
        fixed, per_travelling, per_used = self.of[way]
        travelling, used = table.numbers(way, size)
        return fixed + per_travelling * travelling + per_used * used

    def best(self, table: Size, size: int, among: Sequence[Way] = WAYS) -> Way:
        """Return the fastest way."""
        return min(among, key=lambda way: self.seconds(way, table, size))


def fitted(points: Sequence[tuple[float, float, float]]) -> tuple[float, float, float]:
    """Fit costs to measurements: (numbers that travel, rows that are used, seconds). None is negative.

    Relative errors count, so that a long step does not hide what is wrong with a short one.
    """
    data = np.array(points, np.float64)
    terms = np.column_stack([np.ones(len(data)), data[:, :2]]) / data[:, 2:]
    scale = np.maximum(np.abs(terms).max(0), 1e-300)
    chosen = list(range(3))
    while chosen:
        found, *_ = np.linalg.lstsq(
            terms[:, chosen] / scale[chosen], np.ones(len(data)), rcond=None
        )
        if (found >= 0).all():
            costs = np.zeros(3)
            costs[chosen] = found / scale[chosen]
            return float(costs[0]), float(costs[1]), float(costs[2])
        chosen.pop(int(np.argmin(found)))
    return 0.0, 0.0, 0.0


def curve(samples: Mapping[int, float]) -> tuple[float, float, float]:
    """Fit b / P + a (P - 1) + c, the seconds of a step with P partitions. Return b, a and c.

    `samples` has three measurements or more.
    """
    counts = np.array(list(samples), np.float64)
    terms = np.column_stack([1 / counts, counts - 1, np.ones(len(counts))])
    found, *_ = np.linalg.lstsq(terms, np.array(list(samples.values())), rcond=None)
    b, a, c = map(float, found)
    return b, a, c


def partitions(samples: Mapping[int, float], size: int, worth: float = 0.05) -> int:
    """Return the best number of partitions, by the curve through the samples and between them.

    That is one for each of `size` processes, unless another number saves `worth` of the time: then all have
    as many rows. Above `size`, only its multiples give every owner as many threads.
    """
    if size not in samples or len(samples) < 3:
        return min(samples, key=lambda count: samples[count])
    b, a, c = curve(samples)
    usable = [
        count
        for count in range(min(samples), max(samples) + 1)
        if count <= size or count % size == 0
    ]
    seconds = {count: b / count + a * (count - 1) + c for count in usable}
    best = min(usable, key=lambda count: seconds[count])
    return best if seconds[best] < (1 - worth) * seconds[size] else size
