# SPDX-License-Identifier: Apache-2.0
"""A process for steps of TensorFlow 2: a parameter server, a worker, or the chief that trains with both."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any

import numpy as np
import tensorflow as tf

from member import timed_values
from tf_cases import ROWS, WIDTH
from tf_task import Handlers, commands_of, serve, start_server

# Small enough that no value becomes denormal, on which processors are slow.
_RATE = 2.0**-10
# What two equal tensors add up to.
_SUM = 4.0
_WORKER = "/job:worker/replica:0/task:0/device:CPU:0"
_SEED, _BATCHES = 11, 16


class Chief:
    """Runs one kind of step at a time; without servers, in this process."""

    def __init__(self, cluster: dict[str, list[str]], protocol: str) -> None:
        self._coordinator: Any = None
        if set(cluster) != {"chief"}:
            resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
                tf.train.ClusterSpec(cluster), task_type="chief", task_id=0, rpc_layer=protocol
            )
            strategy = tf.distribute.ParameterServerStrategy(resolver)
            self._coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
        self._block: Callable[[int], Mapping[str, Any]] | None = None

    def _scope(self) -> Any:
        return self._coordinator.strategy.scope() if self._coordinator else nullcontext()

    def coordinator(self, count: int, nbytes: int) -> Mapping[str, Any]:
        """Build a step that updates `count` variables, which the coordinator gives to the worker."""
        with self._scope():
            variables = [tf.Variable(tf.fill([nbytes // 4], 1.0 + index)) for index in range(count)]

        @tf.function
        def descend() -> Any:
            values = [variable.read_value() for variable in variables]
            for variable, value in zip(variables, values, strict=True):
                variable.assign_sub(_RATE * value)
            return tf.add_n([tf.reduce_max(value) for value in values])

        def step() -> float:
            if self._coordinator is None:
                return float(descend())
            return float(self._coordinator.schedule(descend).fetch())

        def block(steps: int) -> Mapping[str, Any]:
            step()
            seconds, values = timed_values(step, steps)
            return {"seconds": seconds, "losses": values, "steps": steps + 1}

        self._block = block
        return {}

    def eager(self, nbytes: int, fed: bool) -> Mapping[str, Any]:
        """Build an addition on the worker; the value comes back."""
        worker = _WORKER if self._coordinator else "CPU:0"
        with tf.device(worker):
            there = tf.fill([nbytes // 4], _SUM / 2)

        def block(steps: int) -> Mapping[str, Any]:
            # An input pipeline allocates and fills arrays before the step, too.
            arrays = [np.full(nbytes // 4, _SUM / 2, np.float32) for _ in range(steps + 1)]

            def step() -> Any:
                here = arrays.pop() if fed else there
                with tf.device(worker):
                    return (here + there).numpy()

            step()
            seconds, values = timed_values(step, steps)
            if not all((value == _SUM).all() for value in values):
                raise ValueError(f"brought back {values}")
            return {"seconds": seconds, "losses": [], "steps": steps + 1}

        self._block = block
        return {}

    def embedding(self, tables: int, ids: int, parts: int = 1) -> Mapping[str, Any]:
        """Build a step that looks up `ids` ids in each of `tables` tables; each is in `parts` parts."""
        with self._scope():
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
                loss = tf.add_n([0.1 * tf.reduce_mean(tf.square(each)) for each in rows])
            every = [part for table in variables for part in table]
            for variable, gradient in zip(every, tape.gradient(loss, every), strict=True):
                variable.scatter_sub(gradient)
            return loss

        made = 0

        def block(steps: int) -> Mapping[str, Any]:
            """The mean time of steps, which the coordinator hands to the worker in the background."""
            nonlocal made
            numbers = [tf.constant(made + each) for each in range(steps)]
            made += steps
            start = time.perf_counter()
            if self._coordinator is None:
                results = [step(number) for number in numbers]
            else:
                scheduled = [self._coordinator.schedule(step, args=(each,)) for each in numbers]
                self._coordinator.join()
                results = [each.fetch() for each in scheduled]
            seconds = (time.perf_counter() - start) / steps
            losses = [float(result) for result in results]
            return {"seconds": [seconds], "losses": losses, "steps": steps}

        self._block = block
        return {}

    def block(self, steps: int) -> Mapping[str, Any]:
        """Time `steps` steps."""
        assert self._block is not None
        return self._block(steps)

    def close(self) -> Mapping[str, Any]:
        """Drop the step and its variables."""
        self._block = None
        return {}


def start(cluster: dict[str, list[str]], job: str, index: int, protocol: str) -> Handlers:
    if job == "chief":
        return commands_of(Chief(cluster, protocol))
    start_server(cluster, job, index, protocol)
    return {}


if __name__ == "__main__":
    serve(start)
