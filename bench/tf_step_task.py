# SPDX-License-Identifier: Apache-2.0
"""A process of bench_tensorflow.py for steps of TensorFlow 2: a parameter server, a worker, or the chief."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tf_task import connect, serve_with

# Small enough that no value becomes denormal, on which processors are slow.
_RATE = 2.0**-10
# What two equal tensors add up to.
_SUM = 4.0
_WORKER = "/job:worker/replica:0/task:0/device:CPU:0"


class Chief:
    """Runs one kind of step at a time; without servers, in this process."""

    def __init__(self, cluster: dict[str, list[str]], protocol: str) -> None:
        self._coordinator = connect(cluster, protocol)
        self._worker = _WORKER if self._coordinator else "CPU:0"
        self._step: Callable[[], Any] | None = None
        self._keep: Any = None
        self._fed: list[Any] = []
        self._fed_bytes = 0

    def coordinator(self, count: int, nbytes: int, fed: bool) -> Mapping[str, Any]:
        """Build a step that updates `count` variables, which the coordinator gives to the worker."""

        def make() -> list[tf.Variable]:
            return [tf.Variable(tf.fill([nbytes // 4], 1.0 + index)) for index in range(count)]

        if self._coordinator is None:
            variables = make()
        else:
            with self._coordinator.strategy.scope():
                variables = make()

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

        self._step, self._keep, self._fed_bytes = step, variables, 0
        return {}

    def eager(self, count: int, nbytes: int, fed: bool) -> Mapping[str, Any]:
        """Build an addition on the worker; the value comes back."""
        with tf.device(self._worker):
            there = tf.fill([nbytes // 4], _SUM / 2)

        def step() -> Any:
            here = self._fed.pop() if fed else there
            with tf.device(self._worker):
                return (here + there).numpy()

        self._fed_bytes = nbytes if fed else 0
        self._step = step
        return {}

    def block(self, steps: int) -> Mapping[str, Any]:
        """Time each of `steps` steps; one more runs before them."""
        assert self._step is not None
        # An input pipeline allocates and fills arrays before the step, too.
        self._fed = [np.full(self._fed_bytes // 4, _SUM / 2, np.float32) for _ in range(steps + 1)]
        self._step()
        seconds, values = [], []
        for _ in range(steps):
            begin = time.perf_counter()
            value = self._step()
            seconds.append(time.perf_counter() - begin)
            if isinstance(value, float):
                values.append(value)
            elif not (value == _SUM).all():
                raise ValueError(f"brought back {value}")
        return {"seconds": seconds, "losses": values, "steps": steps + 1}

    def close(self) -> Mapping[str, Any]:
        """Drop the step and its variables."""
        self._step = self._keep = None
        return {}


if __name__ == "__main__":
    serve_with(Chief)
