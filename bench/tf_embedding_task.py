# SPDX-License-Identifier: Apache-2.0
"""A process of bench_embedding.py: a parameter server, a worker, or the chief that trains with both."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import numpy as np
import tensorflow as tf

from tf_task import connect, serve_with

ROWS, WIDTH = 100_000, 64
_SEED = 11
_RATE = 0.1
_BATCHES = 16


class Chief:
    """Trains tables of embeddings, which are on the parameter server; the worker computes."""

    def __init__(self, cluster: dict[str, list[str]], protocol: str) -> None:
        self._coordinator = connect(cluster, protocol)
        self._made = 0
        self._step: Any = None

    def train(self, tables: int, ids: int, parts: int = 1) -> Mapping[str, Any]:
        """Build a step that looks up `ids` ids in each of `tables` tables; each is in `parts` parts."""
        self._made = 0
        with self._coordinator.strategy.scope() if self._coordinator else nullcontext():
            variables = [
                [
                    tf.Variable(tf.random.stateless_normal([ROWS // parts, WIDTH], [_SEED, table]))
                    for _ in range(parts)
                ]
                for table in range(tables)
            ]

        # An input pipeline prepares the ids before the step, too.
        random = np.random.default_rng(_SEED)
        pools = [
            tf.constant([random.choice(ROWS, ids, replace=False) for _ in range(_BATCHES)])
            for _ in variables
        ]

        @tf.function
        def step(number: Any) -> Any:
            # The number of ids changes from step to step.
            batch = [pool[number % _BATCHES, number % 8 :] for pool in pools]
            with tf.GradientTape() as tape:
                rows = [
                    tf.compat.v1.nn.embedding_lookup(table, each)
                    for table, each in zip(variables, batch, strict=True)
                ]
                loss = tf.add_n([_RATE * tf.reduce_mean(tf.square(each)) for each in rows])
            every = [part for table in variables for part in table]
            for variable, gradient in zip(every, tape.gradient(loss, every), strict=True):
                variable.scatter_sub(gradient)
            return loss

        self._step = step
        return {}

    def block(self, steps: int) -> Mapping[str, Any]:
        """The mean time of `steps` steps, which the coordinator hands to the worker in the background."""
        numbers = [tf.constant(self._made + step) for step in range(steps)]
        self._made += steps
        start = time.perf_counter()
        if self._coordinator is None:
            results = [self._step(number) for number in numbers]
        else:
            scheduled = [self._coordinator.schedule(self._step, args=(each,)) for each in numbers]
            self._coordinator.join()
            results = [each.fetch() for each in scheduled]
        seconds = (time.perf_counter() - start) / steps
        losses = [float(result) for result in results]
        return {"seconds": [seconds], "losses": losses, "steps": steps}

    def close(self) -> Mapping[str, Any]:
        """Drop the step and its tables."""
        self._step = None
        return {}


if __name__ == "__main__":
    serve_with(Chief)
