# SPDX-License-Identifier: Apache-2.0
"""The steps that are timed, as TensorFlow graphs. All protocols run the same graph.

Device strings pin both ends of each transfer, and the sources are variables that change between blocks of
steps, so no optimiser can fold, hoist or cache what travels.
"""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from converge_data import Digits
from tf_cases import ALONE, ROW_BYTES, TRAINING_SHAPES, Case

v1 = tf.compat.v1


def task(index: int) -> str:
    """The device of task `index`; in the cluster where nothing is remote, that of its only task."""
    return f"/job:worker/task:{0 if os.environ.get(ALONE) else index}"


OWNER = task(1)
CONSUMER = task(0)

UNTIMED_STEPS = 1

_MODULUS = 1021
_SEED = 7
_LEARNING_RATE = 0.01


def reads_of(variables: list[Any]) -> list[tf.Tensor]:
    """The values of resource variables, read on the current device."""
    return [
        tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=tf.float32)
        for variable in variables
    ]


def initial(shape: tuple[int, ...], index: int) -> tf.Tensor:
    """Zeros for biases; otherwise normal values whose variance preserves that of the activations."""
    if len(shape) == 1:
        return tf.zeros(shape)
    spread = prod(shape[:-1]) ** -0.5
    return tf.random.stateless_normal(shape, seed=[_SEED, index], stddev=spread)


def cross_entropy(scores: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """The mean cross entropy of a batch of scores."""
    return tf.reduce_mean(
        tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=scores)
    )


class Workload(ABC):
    """A graph and its session. `target` is a server's address, "" for a session of this process."""

    def __init__(self, name: str, target: str) -> None:
        self.graph = tf.Graph()
        self._target = target
        # With a container of its own, `close` frees the variables on the other task as well.
        self._container = "".join(letter for letter in name if letter.isalnum())
        with self.graph.as_default(), self.graph.container(self._container):
            self.build()
        self.session = v1.Session(target, graph=self.graph)
        self.initialise()

    @abstractmethod
    def build(self) -> None:
        """Add the operations to the default graph."""

    @abstractmethod
    def initialise(self) -> None:
        """Give the variables their first values."""

    @abstractmethod
    def before_block(self) -> None:
        """Prepare a block of steps; this is not timed."""

    @abstractmethod
    def step(self) -> Any:
        """Run one step, which is timed, and return what it fetched."""

    @abstractmethod
    def check(self, fetched: Any) -> None:
        """ValueError if a step fetched something wrong."""

    def block(self, steps: int) -> tuple[list[float], list[Any]]:
        """Seconds and fetched values of `steps` steps.

        UNTIMED_STEPS run before them, because caches and threads still belong to the previous cluster.
        """
        self.before_block()
        for _ in range(UNTIMED_STEPS):
            self.step()
        seconds: list[float] = []
        fetched: list[Any] = []
        for _ in range(steps):
            start = time.perf_counter()
            value = self.step()
            seconds.append(time.perf_counter() - start)
            fetched.append(value)
        for value in fetched:
            self.check(value)
        return seconds, fetched

    def close(self) -> None:
        """Close the session and free the variables."""
        self.session.close()
        if self._target:
            v1.Session.reset(self._target, [self._container])


class Transfer(Workload):
    """Tensors that travel from one task to the other in every step."""

    def __init__(self, case: Case, target: str) -> None:
        self._case = case
        self._shape = [case.nbytes // 4]
        if case.source == "rows unknown":
            self._shape = [case.nbytes // ROW_BYTES, ROW_BYTES // 4]
        self._length = case.nbytes // 4
        self._updates = 0
        super().__init__(case.name, target)

    def build(self) -> None:
        # The offset is fed, because the optimiser would fold a constant pattern into the graph.
        self._offset = v1.placeholder(tf.int32, [])
        indices = range(self._case.count)
        sender, receiver = (CONSUMER, OWNER) if self._case.push else (OWNER, CONSUMER)
        if self._case.consumer == "echo":
            sender = receiver
        with tf.device(sender):
            fed = self._case.source == "fed"
            sources = self._placeholders() if fed else self._variables()
        with tf.device(receiver):
            # All slices share these constants: two for each slice would cost more than the slice.
            last = [extent - 1 for extent in self._shape]
            self._last = tf.constant(last), tf.constant([1] * len(last))
            self._step = tf.concat([self._take(source) for source in sources], axis=0)
            self._same = tf.reduce_all(
                [tf.reduce_all(tf.equal(sources[index], self._pattern(index))) for index in indices]
            )

    def _placeholders(self) -> list[tf.Tensor]:
        """Placeholders, which need no initialisation and no update."""
        self._fed = [v1.placeholder(tf.float32, self._shape) for _ in range(self._case.count)]
        self._values: list[npt.NDArray[np.float32]] = []
        self._initialise = self._update = tf.no_op()
        return self._fed

    def _variables(self) -> list[tf.Tensor]:
        self._fed, self._values = [], []
        known = None if self._case.source == "rows unknown" else self._shape[0]
        variables = [
            tf.Variable(lambda i=index: self._pattern(i), shape=[known, *self._shape[1:]])
            for index in range(self._case.count)
        ]
        self._initialise = tf.group([variable.initializer for variable in variables])
        self._update = tf.group([variable.assign(variable + 1.0).op for variable in variables])
        return reads_of(variables)

    def _pattern(self, index: int) -> tf.Tensor:
        """The value of tensor `index` after `offset` updates. No two tensors are equal."""
        ramp = (tf.range(self._length) + 7 * index) % _MODULUS
        return tf.reshape(tf.cast(ramp + self._offset, tf.float32), self._shape)

    def _take(self, source: tf.Tensor) -> tf.Tensor:
        if self._case.consumer == "echo":
            return source + 1.0
        if self._case.consumer == "read":
            return tf.reshape(tf.reduce_max(source), [1])
        taken = tf.slice(source, *self._last)
        return taken if len(self._shape) == 1 else tf.reshape(taken, [1])

    def _expected(self) -> npt.NDArray[np.float32]:
        """The values that a step must fetch now."""
        if self._case.consumer == "echo":
            return np.concatenate(self._values) + np.float32(1)
        if self._case.consumer == "read":
            return np.full(self._case.count, _MODULUS - 1 + self._updates, np.float32)
        ramp = (self._length - 1 + 7 * np.arange(self._case.count)) % _MODULUS
        return (ramp + self._updates).astype(np.float32)

    def initialise(self) -> None:
        self.session.run(self._initialise, {self._offset: 0})
        # A callable avoids that session.run looks up its fetches in every step.
        self._run_step = self.session.make_callable(self._step, self._fed)
        self._feed()

    def _feed(self) -> None:
        """Allocate the arrays that the next steps are fed with, as an input pipeline does."""
        ramp = np.arange(self._length)
        self._values = [
            ((ramp + 7 * index) % _MODULUS + self._updates).astype(np.float32).reshape(self._shape)
            for index in range(len(self._fed))
        ]

    def before_block(self) -> None:
        self.session.run(self._update)
        self._updates += 1
        self._feed()

    def step(self) -> Any:
        fetched = self._run_step(*self._values)
        # The copy releases the place that the tensor arrived in.
        return fetched if self._case.consumer == "echo" else np.array(fetched)

    def check(self, fetched: Any) -> None:
        if not np.array_equal(fetched, self._expected()):
            raise ValueError(f"{self._case.name}: fetched {fetched} instead of {self._expected()}")

    def verify(self) -> None:
        """Compare every element that arrives, before and after an update. ValueError if one differs."""
        for _ in range(2):
            feeds = dict(zip(self._fed, self._values, strict=True))
            if not self.session.run(self._same, {self._offset: self._updates, **feeds}):
                raise ValueError(f"{self._case.name}: the tensors received differ from those sent")
            self.before_block()


class Training(Workload):
    """A training step: `owner` has the variables and applies the gradients that `worker` computes.

    With empty device names, the same step runs without communication.
    """

    def __init__(self, batch: int, target: str, owner: str, worker: str) -> None:
        self._owner = owner
        self._worker = worker
        images, self._labels = Digits().batch(0, 0, batch)
        self._images = images.reshape(batch, -1)
        super().__init__("training", target)

    def build(self) -> None:
        with tf.device(self._owner):
            variables = [
                v1.get_variable(f"p{i}", initializer=initial(shape, i), use_resource=True)
                for i, shape in enumerate(TRAINING_SHAPES)
            ]
            self._initialise = tf.group([variable.initializer for variable in variables])
            values = reads_of(variables)
        with tf.device(self._worker):
            self._image_feed = v1.placeholder(tf.float32, self._images.shape)
            self._label_feed = v1.placeholder(tf.int32, self._labels.shape)
            w0, b0, w1, b1, w2, b2 = values
            there = tf.nn.relu(tf.matmul(self._image_feed, w0) + b0)
            there = tf.nn.relu(tf.matmul(there, w1) + b1)
            self._loss = cross_entropy(tf.matmul(there, w2) + b2, self._label_feed)
            gradients = tf.gradients(self._loss, values)
        with tf.device(self._owner):
            updates = [
                tf.raw_ops.ResourceApplyGradientDescent(
                    var=variable.handle, alpha=_LEARNING_RATE, delta=gradient, use_locking=True
                )
                for variable, gradient in zip(variables, gradients, strict=True)
            ]
            self._train = tf.group(updates)

    def initialise(self) -> None:
        self.session.run(self._initialise)

    def before_block(self) -> None:
        """Do nothing, because each step changes the variables."""

    def step(self) -> float:
        feeds = {self._image_feed: self._images, self._label_feed: self._labels}
        loss, _ = self.session.run([self._loss, self._train], feeds)
        return float(loss)

    def check(self, fetched: Any) -> None:
        if not np.isfinite(fetched):
            raise ValueError(f"the loss is {fetched}")
