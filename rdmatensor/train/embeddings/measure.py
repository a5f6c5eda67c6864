# SPDX-License-Identifier: Apache-2.0
"""Measure steps with a table of each placement, in all processes, which agree on the times."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from ..backend.tensorflow import operations
from ..backend.tensorflow.gradients import mean
from ..run.session import Session
from ..sync.base import Array
from .choice import Costs, Size, fitted
from .placement import WAYS, Placement, Way, lookup, place, reduce
from .updates import Rule, update_rows

_ROWS = 1 << 15
# The ways, with the rows of a table, their width, and how many of them a process uses.
_POINTS: Sequence[tuple[Way, int, int, int]] = (
    ("dense", 1 << 10, 64, 64),
    ("dense", _ROWS, 64, 64),
    ("dense", _ROWS, 64, 1 << 12),
    ("dense", _ROWS, 8, 1 << 12),
    *(
        (way, _ROWS, width, used)
        for way in ("gather", "owners")
        for width, used in ((64, 64), (64, 1 << 10), (64, 1 << 13), (8, 1 << 10), (8, 1 << 13))
    ),
)
_REPEATS = 9
# Numbers of the largest table that is made for a measurement.
LARGEST = 1 << 23


class Trial:
    """A table of its own, and steps that look rows up and update them by a rule: "adam" or "sgd"."""

    def __init__(self, placement: Placement, rule: str = "adam") -> None:
        self._placement = placement
        shape = (placement.rows_here, placement.width)
        self._table = tf.Variable(tf.zeros(shape), trainable=True)
        place(self._table, placement)
        slots = [tf.Variable(tf.zeros(shape)) for _ in range(2 if rule == "adam" else 0)]
        self._rule = Rule(rule, slots, lambda rate: (rate, 0.9, 0.999, 1e-7))
        self.step = tf.function(
            self._train, input_signature=[tf.TensorSpec([None], tf.int32)], jit_compile=False
        )

    def seconds(self, batches: Sequence[Any]) -> float:
        """Return the mean time of a step with one of the batches. All processes call it."""
        operations.barrier(self._placement.run, "a measurement begins")
        begin = time.perf_counter()
        for ids in batches:
            self.step(ids)
        return (time.perf_counter() - begin) / len(batches)

    def _train(self, ids: Any) -> None:
        placement, table = self._placement, self._table
        with tf.GradientTape() as tape:
            owned = placement.owned
            rows = lookup(placement, table, ids, tf.float32) if owned else tf.gather(table, ids)
            loss = tf.reduce_sum(tf.square(rows + 1.0))
        (gradient,) = reduce(
            placement.run,
            [tape.gradient(loss, table)],
            [table],
            lambda left: mean(placement.run, left, name="a measurement"),
            keep_rows=True,
        )
        update_rows(self._rule, placement, table, gradient, tf.constant(1e-3))


def costs(run: Session) -> Costs:
    """Return what the ways cost in this group, which is measured in the first call. All processes call it."""
    known: Costs | None = getattr(run, "_row_costs", None)
    if known is None:
        known = run._row_costs = _costs(run)  # type: ignore[attr-defined]
    return known


def _costs(run: Session) -> Costs:
    trials: dict[tuple[Way, int, int], Trial] = {}
    points, steps = [], []
    for way, rows, width, used in _POINTS:
        if (way, rows, width) not in trials:
            placement = Placement(run, f"trial of {way}", rows, width, way, run.size)
            trials[way, rows, width] = Trial(placement)
        ids = different(run, rows, used)
        most = np.int64(np.bincount(ids % run.size).max())
        longest = operations.all_reduce(run, most, "max", "rows of an owner")
        points.append((way, Size(rows, width, used, float(longest))))
        steps.append((trials[way, rows, width], [tf.constant(ids)]))
    found: dict[Way, list[tuple[float, float, float]]] = {way: [] for way in WAYS}
    for (way, size), seconds in zip(points, measured(run, steps), strict=True):
        found[way].append((*size.numbers(way, run.size), seconds))
    return Costs({way: fitted(each) for way, each in found.items()})


def measured(
    run: Session, steps: Sequence[tuple[Trial, Sequence[Any]]], rounds: int = _REPEATS
) -> list[float]:
    """Return the median seconds of each trial's steps, in the slowest process.

    Trials take turns, so that all meet the same noise. Each comes with the ids of its batches. All processes
    call it, and get the same answer.
    """
    for trial, batches in steps:
        trial.step(batches[0])  # which traces
    times = [[trial.seconds(batches) for trial, batches in steps] for _ in range(rounds)]
    medians = np.median(np.array(times), 0)
    agreed = operations.all_reduce(run, medians, "max", "measured times")
    return [float(each) for each in agreed.numpy()]


def different(run: Session, rows: int, count: int, number: int = 0) -> Array:
    """Return `count` different row numbers, as int32.

    They differ between processes, and for each `number`.
    """
    numbers = np.random.default_rng([rows, count, run.rank, number])
    return numbers.choice(rows, min(count, rows), replace=False).astype(np.int32)


def partition_times(run: Session, table: Size) -> dict[int, float]:
    """Return the seconds of a step by the number of partitions: doubled while that helps, and then halved."""
    rows = int(max(min(table.rows, LARGEST // table.width), 1))
    ids = tf.constant(different(run, rows, int(table.used) or 1))
    found: dict[int, float] = {}

    def measure(count: int) -> float:
        placement = Placement(run, "trial of partitions", rows, table.width, "owners", count)
        (found[count],) = measured(run, [(Trial(placement), [ids])])
        return found[count]

    here = tf.config.threading.get_intra_op_parallelism_threads() or len(os.sched_getaffinity(0))
    threads = operations.all_reduce(run, np.int64(here), "max", "threads")
    count, last = run.size, measure(run.size)
    while count * 2 <= run.size * int(threads) and measure(count * 2) < last:
        count *= 2
        last = found[count]
    count, last = run.size, found[run.size]
    while count > 1 and (len(found) < 3 or found[count] <= last):
        last = found[count]
        count //= 2
        measure(count)
    return found
