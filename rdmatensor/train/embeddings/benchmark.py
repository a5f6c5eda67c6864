# SPDX-License-Identifier: Apache-2.0
"""Choose the way of each table. Where predicted costs leave a doubt, steps are measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from ..backend.tensorflow import operations
from ..run.session import Session
from ..sync.base import Array
from .choice import Costs, Size
from .measure import LARGEST, Trial, costs, different, measured
from .placement import WAYS, Placement, Way

# A way that is predicted to take so many times as long as the fastest one is not measured.
_DOUBT = 2.0
# So many tables are measured, those that take longest; others that are alike share their result.
_MOST = 8
_BATCHES, _ROUNDS = 3, 15


class Choice(NamedTuple):
    """The fastest way of a table, the seconds of a step by way, and the ways that were measured."""

    way: Way
    seconds: Mapping[Way, float]
    measured: Sequence[Way] = ()


def decide(
    run: Session, tables: Sequence[Size], allowed: Sequence[Sequence[Way]]
) -> Sequence[Choice]:
    """Return the way of each table, among those allowed for it.

    All processes call it, and get the same answer.

    Steps are measured with tables of the same sizes that are made for it, so the user's do not change. That
    takes some seconds for each table that is measured.
    """
    known = costs(run)
    predicted = [{way: known.seconds(way, each, run.size) for way in WAYS} for each in tables]
    # Processors may round differently, and all have to choose alike.
    doubts = operations.broadcast(
        run, needs_measurement(known, tables, allowed, run.size), 0, "ways of tables"
    ).numpy()
    found: dict[tuple[Size, Sequence[Way]], Mapping[Way, float]] = {}
    choices = []
    for table, seconds, doubt in zip(tables, predicted, doubts, strict=True):
        ways = tuple(way for way, is_doubtful in zip(WAYS, doubt, strict=True) if is_doubtful)
        if len(ways) == 1:
            choices.append(Choice(ways[0], seconds))
            continue
        if (table, ways) not in found:
            found[table, ways] = benchmark_placements(run, table, ways)
        times = found[table, ways]
        choices.append(Choice(min(times, key=times.__getitem__), {**seconds, **times}, ways))
    return choices


def needs_measurement(
    known: Costs, tables: Sequence[Size], allowed: Sequence[Sequence[Way]], size: int
) -> Array:
    """Return ones, by table and way, where ways have to be measured, or where one is clearly the best."""
    found = np.zeros((len(tables), len(WAYS)), np.int64)
    best = [known.best(table, size, among) for table, among in zip(tables, allowed, strict=True)]
    least = [known.seconds(way, table, size) for table, way in zip(tables, best, strict=True)]
    measured: set[Size] = set()
    for i in sorted(range(len(tables)), key=lambda i: -least[i]):
        found[i, WAYS.index(best[i])] = 1
        table = tables[i]
        if table.rows * table.width > LARGEST or len(measured | {table}) > _MOST:
            continue
        for way in allowed[i]:
            if known.seconds(way, table, size) <= _DOUBT * least[i]:
                found[i, WAYS.index(way)] = 1
        if found[i].sum() > 1:
            measured.add(table)
    return found


def benchmark_placements(run: Session, table: Size, ways: Sequence[Way]) -> Mapping[Way, float]:
    """Return the seconds of a step by way, in the slowest process. All processes call it."""
    batches = [tf.constant(_ids(run, table, number)) for number in range(_BATCHES)]
    trials = [
        Trial(Placement(run, f"trial of {way}", table.rows, table.width, way, run.size))
        for way in ways
    ]
    times = measured(run, [(each, batches) for each in trials], _ROUNDS)
    return dict(zip(ways, times, strict=True))


def _ids(run: Session, table: Size, number: int) -> Array:
    """Return as many ids as a batch of the sample has, of which as many differ."""
    rows = different(run, table.rows, max(1, round(table.used)), number)
    more = max(0, round(table.ids) - len(rows))
    again = np.random.default_rng([number, run.rank]).choice(rows, more)
    return np.concatenate([rows, again]).astype(np.int32)
