# SPDX-License-Identifier: Apache-2.0
"""A process of bench_tables.py: trains a table of embeddings together with others, in one of the ways."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

import rdmatensor.train as rt
from member import serve, timed
from rdmatensor.train.backend.tensorflow import operations
from rdmatensor.train.backend.tensorflow.gradients import mean
from rdmatensor.train.embeddings.benchmark import decide
from rdmatensor.train.embeddings.choice import Size
from rdmatensor.train.embeddings.measure import Trial
from rdmatensor.train.embeddings.placement import WAYS, Placement

# The optimizers' own updates: of all rows, and of all that were gathered, one by one.
HOROVOD, DENSE = "all-gather, TensorFlow's update", "dense, TensorFlow's update"
BATCHES = 16


class Plain:
    """A table that every process has, trained as programs do it today."""

    def __init__(self, run: Any, rows: int, width: int, dense: bool) -> None:
        self._run, self._dense = run, dense
        self._table = tf.Variable(tf.zeros([rows, width]))
        signature = [tf.TensorSpec([None], tf.int32)]
        self.step = tf.function(self._train, input_signature=signature)

    def _train(self, ids: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(tf.gather(self._table, ids) + 1.0))
        gradient = tape.gradient(loss, self._table)
        if self._dense:
            gradient = tf.convert_to_tensor(gradient)
        (gradient,) = mean(self._run, [gradient], name="a step")
        if self._dense:
            self._table.assign_sub(1e-3 * gradient)
        else:
            self._table.scatter_sub(tf.IndexedSlices(1e-3 * gradient.values, gradient.indices))


class Member:
    """Answers the launcher."""

    def __init__(self) -> None:
        self._run = rt.init()
        self._made: dict[str, Any] = {}
        self._batches: Sequence[Any] = ()
        self._number = 0

    def train(
        self, rows: int, width: int, ids: int, ways: Sequence[str], rule: str
    ) -> Sequence[float]:
        """Make a table for each way, and the ids of some batches, whose sizes it returns."""
        numbers = np.random.default_rng([rows, width, ids, self._run.rank])
        self._batches = [
            tf.constant(numbers.integers(0, rows, ids), tf.int32) for _ in range(BATCHES)
        ]
        self._made = {way: self._make(way, rows, width, rule) for way in ways}
        return self._size(rows, width)

    def _make(self, way: str, rows: int, width: int, rule: str) -> Any:
        if way in (HOROVOD, DENSE):
            return Plain(self._run, rows, width, way == DENSE)
        placement = Placement(self._run, way, rows, width, way, self._run.size)  # type: ignore[arg-type]
        return Trial(placement, rule)

    def _size(self, rows: int, width: int) -> Sequence[float]:
        unique = [np.unique(each) for each in self._batches]
        used = np.array([len(each) for each in unique])
        owned = [np.bincount(each % self._run.size).max() for each in unique]
        mean_used = float(operations.all_reduce(self._run, np.mean(used), "mean", "used"))
        longest = float(operations.all_reduce(self._run, np.mean(owned), "max", "longest"))
        return rows, width, mean_used, longest, float(self._batches[0].shape[0])

    def block(self, way: str, steps: int) -> Sequence[float]:
        """The time of each of some steps."""
        step = self._made[way].step

        def next_step() -> None:
            self._number += 1
            step(self._batches[self._number % BATCHES])

        operations.barrier(self._run, "a block begins")
        return timed(next_step, steps)

    def choose(self, size: Sequence[float]) -> str:
        """The way that parallelize() would choose."""
        rows, width, used, longest, ids = size
        table = Size(int(rows), int(width), used, longest, ids)
        (choice,) = decide(self._run, [table], [WAYS])
        return choice.way


if __name__ == "__main__":
    member = Member()
    serve({name: getattr(member, name) for name in ("train", "block", "choose")})
