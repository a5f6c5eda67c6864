# SPDX-License-Identifier: Apache-2.0
"""A step of data-parallel training with all of its communication and none of its arithmetic.

Each worker receives all variables, sleeps for the compute time, and sends gradients of the same shapes.
Nothing is summed or applied: each end takes the last element of a tensor ("slice"), or the largest one
("read", which reads every byte). Gradients are variables of the worker, so they exist before the step.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from paper_models import MODELS, Shape
from tf_graphs import CONSUMER, OWNER, Workload, task

v1 = tf.compat.v1

_MODULUS = 1021
_FOREVER = 1 << 62
# Variables are set, updated and compared in portions: all at once need several times the model's memory, and
# one by one need a graph each.
_PORTION = 64 << 20


class Replica(Workload):
    """Steps of `model` with `workers` workers, each of which computes for `compute_s` seconds.

    Task 1 is the parameter server, task 0 the first worker and the client.
    """

    def __init__(
        self, model: str, workers: int, compute_s: float, consumer: str, target: str
    ) -> None:
        self._shapes = MODELS[model].shapes
        self._devices = [CONSUMER, *(task(n + 1) for n in range(1, workers))]
        self._compute_us = round(compute_s * 1e6)
        self._reads = consumer == "read"
        self._updates = 0
        super().__init__(f"{model}{workers}", target)

    def build(self) -> None:
        # The offset is fed, because the optimiser would fold a constant pattern into the graph.
        self._offset = v1.placeholder(tf.float32, [])
        self._setup: list[tf.Operation] = []
        self._initialise: list[Any] = []
        self._update: list[Any] = []
        self._same: list[Any] = []
        # The values that a step must fetch before any update.
        self._first: list[float] = []
        sources = self._variables(OWNER, "v", 0)
        taken: list[tf.Tensor] = []
        for number, device in enumerate(self._devices):
            seen = self._take(sources, device, 0)
            ready = self._compute(number, device, seen)
            with tf.control_dependencies([ready]):
                gradients = self._variables(device, f"g{number}_", number + 1)
            taken += [seen, self._take(gradients, OWNER, number + 1)]
        with tf.device(CONSUMER):
            self._step = tf.concat(taken, axis=0)

    def _variables(self, device: str, prefix: str, role: int) -> list[tf.Tensor]:
        """Reads of variables on `device`, one of each shape. Control dependencies apply to the reads only."""
        reads = []
        for index, shape in enumerate(self._shapes):
            with tf.control_dependencies(None), tf.device(device):
                variable = v1.get_variable(
                    f"{prefix}{index}", shape, initializer=v1.zeros_initializer(), use_resource=True
                )
                self._initialise.append(variable.assign(self._pattern(shape, index, role)).op)
                self._update.append(variable.assign(variable + 1.0).op)
            with tf.device(device):
                reads.append(tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=tf.float32))
        return reads

    def _take(self, arrived: list[tf.Tensor], device: str, role: int) -> tf.Tensor:
        """One element of each tensor, on `device`. Prepares the checks of this one and of all elements."""
        one = []
        with tf.device(device):
            for index, (tensor, shape) in enumerate(zip(arrived, self._shapes, strict=True)):
                end = [size - 1 for size in shape]
                if self._reads:
                    one.append(tf.reshape(tf.reduce_max(tensor), [1]))
                else:
                    one.append(tf.reshape(tf.slice(tensor, end, [1] * len(shape)), [1]))
                self._first.append(self._element(shape, index, role))
                pattern = self._pattern(shape, index, role)
                self._same.append(tf.reduce_all(tf.equal(tensor, pattern)))
            return tf.concat(one, axis=0)

    @staticmethod
    def _phase(index: int, role: int) -> int:
        return 7 * index + 131 * role

    def _pattern(self, shape: Shape, index: int, role: int) -> tf.Tensor:
        """The value of variable `index` of a task after `offset` updates. Last elements differ."""
        ramp = tf.cast(
            (tf.range(math.prod(shape)) + self._phase(index, role)) % _MODULUS, tf.float32
        )
        return tf.reshape(ramp + self._offset, shape)

    def _element(self, shape: Shape, index: int, role: int) -> float:
        """The element that `_take` takes of the pattern before any update."""
        size = math.prod(shape)
        ramp = (np.arange(max(0, size - _MODULUS), size) + self._phase(index, role)) % _MODULUS
        return float(ramp.max() if self._reads else ramp[-1])

    def _compute(self, number: int, device: str, after: tf.Tensor) -> tf.Tensor:
        """A tensor that is ready `compute_us` after `after`, without using a core."""
        if self._compute_us == 0:
            return after
        kinds: dict[str, Any] = {"output_types": [tf.int64], "output_shapes": [tf.TensorShape([])]}
        with tf.device(device):
            count = tf.raw_ops.RangeDataset(
                start=tf.constant(0, tf.int64),
                stop=tf.constant(_FOREVER, tf.int64),
                step=tf.constant(1, tf.int64),
                **kinds,
            )
            sleep_us = tf.constant(self._compute_us, tf.int64)
            sleeping = tf.raw_ops.SleepDataset(
                input_dataset=count, sleep_microseconds=sleep_us, **kinds
            )
            # Optimised, the dataset would prefetch the next element.
            options = tf.data.Options()
            options.autotune.enabled = False
            options.experimental_optimization.apply_default_optimizations = False
            element = tf.TensorSpec([], tf.int64)
            sleeps = tf.data.experimental.from_variant(sleeping, element).with_options(options)
            iterator = v1.data.make_initializable_iterator(sleeps, shared_name=f"compute{number}")
            self._setup.append(iterator.initializer)
            with tf.control_dependencies([after]):
                return iterator.get_next()

    def initialise(self) -> None:
        self._expected = np.array(self._first, np.float32)
        self.session.run(self._setup)
        self._in_portions(self._initialise, {self._offset: 0.0})
        # A callable avoids that session.run looks up its fetches in every step.
        self._run_step = self.session.make_callable(self._step)

    def _in_portions(self, fetches: list[Any], feeds: dict[Any, float]) -> list[Any]:
        """The results of `fetches`, which belong to the variables of each task in turn."""
        results: list[Any] = []
        portion: list[Any] = []
        nbytes = 0
        for number, fetch in enumerate(fetches):
            size = 4 * math.prod(self._shapes[number % len(self._shapes)])
            if portion and nbytes + size > _PORTION:
                results += self.session.run(portion, feeds)
                portion, nbytes = [], 0
            portion.append(fetch)
            nbytes += size
        return results + self.session.run(portion, feeds)

    def before_block(self) -> None:
        self._in_portions(self._update, {})
        self._updates += 1

    def step(self) -> npt.NDArray[np.float32]:
        fetched: npt.NDArray[np.float32] = self._run_step()
        return fetched

    def check(self, fetched: Any) -> None:
        expected = self._expected + self._updates
        if not np.array_equal(fetched, expected):
            wrong = np.flatnonzero(fetched != expected)
            raise ValueError(f"{len(wrong)} of {len(expected)} tensors are wrong, first {wrong[0]}")

    def verify(self) -> None:
        """Compare every element that arrives at either end, before and after an update."""
        for _ in range(2):
            same = self._in_portions(self._same, {self._offset: float(self._updates)})
            if not all(same):
                raise ValueError(f"{same.count(False)} tensors differ from those sent")
            self.before_block()
