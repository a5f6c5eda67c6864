# SPDX-License-Identifier: Apache-2.0
"""Steps that only move tensors: some of one size, or all that a training step of a paper's model moves.

The sources are variables that change between blocks of steps, so no optimiser can fold, hoist or cache what
travels. Each end takes the last element of a tensor ("slice"), or the largest one ("read", which reads every
byte).
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from paper_models import MODELS, Shape
from tf_cases import ROW_BYTES
from tf_graphs import CONSUMER, DEVICE, OWNER, Workload, task

v1 = tf.compat.v1

_MODULUS = 1021
_FOREVER = 1 << 62
# Variables are set, updated and compared in portions: all at once need several times the model's memory, and
# one by one need a graph each.
_PORTION = 64 << 20


def _phase(index: int, role: int) -> int:
    return 7 * index + 131 * role


class Patterned(Workload):
    """Moves tensors of `shapes` whose values are known. Tasks have a `role`, and no two tensors are equal."""

    def __init__(self, name: str, shapes: Sequence[Shape], consumer: str, target: str) -> None:
        self._name, self._shapes, self._consumer = name, shapes, consumer
        self._initial: list[Any] = []
        self._update: list[Any] = []
        self._same: list[Any] = []
        # The values that a step must fetch before any update.
        self._first: list[float] = []
        self._fed: list[tf.Tensor] = []
        self._values: list[npt.NDArray[np.float32]] = []
        self._updates = 0
        super().__init__(name, target)

    def build(self) -> None:
        # The offset is fed, because the optimiser would fold a constant pattern into the graph.
        self._offset = v1.placeholder(tf.float32, [])
        taken = self.move()
        with tf.device(CONSUMER):
            self._step = tf.concat(taken, axis=0) if len(taken) > 1 else taken[0]

    @abstractmethod
    def move(self) -> list[tf.Tensor]:
        """Add the tensors that travel to the graph, and return what the consumer takes of them."""

    def variables(self, device: str, role: int = 0, rows_known: bool = True) -> list[tf.Tensor]:
        """Reads of variables on `device`, one of each shape. Control dependencies apply to the reads only."""
        reads = []
        for index, shape in enumerate(self._shapes):
            known = shape if rows_known else (None, *shape[1:])
            with tf.control_dependencies(None), tf.device(device):
                variable = tf.Variable(lambda shape=shape: tf.zeros(shape), shape=known)
                self._initial.append(variable.assign(self._pattern(shape, index, role)).op)
                self._update.append(variable.assign(variable + 1.0).op)
            with tf.device(device):
                reads.append(tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=tf.float32))
        return reads

    def take(self, arrived: list[tf.Tensor], device: str, role: int = 0) -> tf.Tensor:
        """One element of each tensor, on `device`. Prepares the checks of this one and of all elements."""
        one, ends = [], {}
        with tf.device(device):
            for index, (tensor, shape) in enumerate(zip(arrived, self._shapes, strict=True)):
                pattern = self._pattern(shape, index, role)
                self._same.append(tf.reduce_all(tf.equal(tensor, pattern)))
                self._first.append(self._element(shape, index, role))
                if self._consumer == "read":
                    one.append(tf.reshape(tf.reduce_max(tensor), [1]))
                    continue
                if shape not in ends:
                    # Slices share these constants: two for each would cost more than the slice.
                    ends[shape] = tf.constant([size - 1 for size in shape]), tf.ones_like(shape)
                taken = tf.slice(tensor, *ends[shape])
                one.append(taken if len(shape) == 1 else tf.reshape(taken, [1]))
            return tf.concat(one, axis=0)

    def _pattern(self, shape: Shape, index: int, role: int) -> tf.Tensor:
        """The value of tensor `index` of a task after `offset` updates."""
        ramp = (tf.range(math.prod(shape)) + _phase(index, role)) % _MODULUS
        return tf.reshape(tf.cast(ramp, tf.float32) + self._offset, shape)

    def _element(self, shape: Shape, index: int, role: int) -> float:
        """The element that `take` takes of the pattern before any update."""
        size = math.prod(shape)
        ramp = (np.arange(max(0, size - _MODULUS), size) + _phase(index, role)) % _MODULUS
        return float(ramp.max() if self._consumer == "read" else ramp[-1])

    def initialise(self) -> None:
        self._in_portions(self._initial, {self._offset: 0.0})
        # A callable avoids that session.run looks up its fetches in every step.
        self._run_step = self.session.make_callable(self._step, self._fed)
        self._feed()

    def _in_portions(self, fetches: list[Any], feeds: dict[Any, Any]) -> list[Any]:
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
        return results + (self.session.run(portion, feeds) if portion else [])

    def _feed(self) -> None:
        """Allocate the arrays that the next steps are fed with, as an input pipeline does."""
        self._values = [
            ((np.arange(math.prod(shape)) + _phase(index, 0)) % _MODULUS + self._updates)
            .astype(np.float32)
            .reshape(shape)
            for index, (shape, _) in enumerate(zip(self._shapes, self._fed, strict=False))
        ]

    def before_block(self) -> None:
        self._in_portions(self._update, {})
        self._updates += 1
        self._feed()

    def step(self) -> npt.NDArray[np.float32]:
        fetched: npt.NDArray[np.float32] = self._run_step(*self._values)
        # The copy releases the place that the tensor arrived in.
        return fetched if self._consumer == "echo" else np.array(fetched)

    def check(self, fetched: Any) -> None:
        expected = np.array(self._first, np.float32) + np.float32(self._updates)
        if self._consumer == "echo":
            expected = np.concatenate(self._values) + np.float32(1)
        if not np.array_equal(fetched, expected):
            wrong = np.flatnonzero(fetched != expected)
            raise ValueError(f"{self._name}: {len(wrong)} values are wrong, first {wrong[0]}")

    def verify(self) -> None:
        """Compare every element that arrives at either end, before and after an update."""
        for _ in range(2):
            feeds = dict(zip(self._fed, self._values, strict=True))
            same = self._in_portions(self._same, {self._offset: float(self._updates), **feeds})
            if not all(same):
                raise ValueError(
                    f"{self._name}: {same.count(False)} tensors differ from those sent"
                )
            self.before_block()


class Transfer(Patterned):
    """Tensors that travel from one task to the other in every step, as tf_cases.transfer explains."""

    def __init__(
        self,
        name: str,
        count: int,
        nbytes: int,
        consumer: str,
        source: str,
        push: bool,
        target: str,
    ) -> None:
        self._source, self._push = source, push
        rows = (nbytes // ROW_BYTES, ROW_BYTES // 4)
        shape = rows if source == "rows unknown" else (nbytes // 4,)
        super().__init__(name, [shape] * count, consumer, target)

    def move(self) -> list[tf.Tensor]:
        sender, receiver = (CONSUMER, OWNER) if self._push else (OWNER, CONSUMER)
        if self._consumer == "echo":
            sender = receiver
        if self._source == "fed":
            with tf.device(sender):
                sources = self._fed = [v1.placeholder(tf.float32, each) for each in self._shapes]
        else:
            sources = self.variables(sender, rows_known=self._source != "rows unknown")
        taken = self.take(sources, receiver)
        if self._consumer != "echo":
            return [taken]
        with tf.device(receiver):
            return [source + 1.0 for source in sources]


class BetweenDevices(Workload):
    """Tensors that travel from the owner's device to the consumer's, whose memories the host cannot touch."""

    config = v1.ConfigProto()
    # It would put operations on the devices that they do not have.
    config.graph_options.rewrite_options.disable_meta_optimizer = True

    def __init__(self, name: str, count: int, nbytes: int, target: str) -> None:
        self._name, self._count, self._size = name, count, nbytes // 4
        self._updates = 0
        super().__init__(name, target)

    def build(self) -> None:
        with tf.device(OWNER):
            self._given = v1.placeholder(tf.float32, [self._size])
        self._assigned, received = [], []
        for number in range(self._count):
            with tf.device(OWNER + DEVICE):
                handle = tf.raw_ops.VarHandleOp(
                    dtype=tf.float32, shape=[self._size], shared_name=f"sent{number}"
                )
                self._assigned.append(
                    tf.raw_ops.AssignVariableOp(resource=handle, value=self._given + float(number))
                )
                sent = tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.float32)
            with tf.device(CONSUMER + DEVICE):
                received.append(tf.identity(sent))
        self._received = received
        with tf.device(CONSUMER):
            self._step = tf.group(*received)

    def initialise(self) -> None:
        self._run_step = self.session.make_callable(self._step)

    def before_block(self) -> None:
        """Change the values, and compare all that arrive."""
        self._updates += 1
        values = np.arange(self._size, dtype=np.float32) % _MODULUS + np.float32(self._updates)
        self.session.run(self._assigned, {self._given: values})
        for number, arrived in enumerate(self.session.run(self._received)):
            if not np.array_equal(arrived, values + np.float32(number)):
                raise ValueError(f"{self._name}: tensor {number} differs from the one sent")

    def step(self) -> None:
        self._run_step()


class Replica(Patterned):
    """A step of data-parallel training with all of its communication and none of its arithmetic.

    Task 1 is the parameter server, task 0 the first worker and the client. Each of `workers` workers receives
    all variables, sleeps for the compute time, and sends gradients of the same shapes. Nothing is summed or
    applied. Gradients are variables of the worker, so they exist before the step.
    """

    def __init__(
        self, model: str, workers: int, compute_s: float, consumer: str, target: str
    ) -> None:
        self._devices = [CONSUMER, *(task(n + 1) for n in range(1, workers))]
        self._us = round(compute_s * 1e6)
        self._setup: list[tf.Operation] = []
        super().__init__(f"{model}{workers}", MODELS[model].shapes, consumer, target)

    def move(self) -> list[tf.Tensor]:
        sources = self.variables(OWNER)
        taken = []
        for number, device in enumerate(self._devices):
            seen = self.take(sources, device)
            with tf.control_dependencies([self._compute(number, device, seen)]):
                gradients = self.variables(device, number + 1)
            taken += [seen, self.take(gradients, OWNER, number + 1)]
        return taken

    def initialise(self) -> None:
        self.session.run(self._setup)
        super().initialise()

    def _compute(self, number: int, device: str, after: tf.Tensor) -> tf.Tensor:
        """A tensor that is ready `compute_us` after `after`, without using a core."""
        if self._us == 0:
            return after
        kinds: dict[str, Any] = {"output_types": [tf.int64], "output_shapes": [tf.TensorShape([])]}
        with tf.device(device):
            count = tf.raw_ops.RangeDataset(
                start=tf.constant(0, tf.int64),
                stop=tf.constant(_FOREVER, tf.int64),
                step=tf.constant(1, tf.int64),
                **kinds,
            )
            sleep_us = tf.constant(self._us, tf.int64)
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
