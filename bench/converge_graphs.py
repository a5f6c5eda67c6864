# SPDX-License-Identifier: Apache-2.0
"""The models of bench_converge.py: a parameter server has the variables, and workers compute on batches.

Each step makes one update: gradients of all workers are averaged in the order of the workers. So the result
depends neither on the speed of a worker nor on the transport.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from typing import Any

import tensorflow as tf

from converge_data import Data, Digits, Words
from tf_graphs import CONSUMER, OWNER, Workload, cross_entropy, initial, reads_of, task

v1 = tf.compat.v1

_MOMENTUM = 0.9


class Learner(Workload):
    """Trains one model with `workers` workers, each on `batch` examples per step."""

    name: str
    rate: float
    batch: int
    target: float

    def __init__(self, workers: int, target: str) -> None:
        self._devices = [CONSUMER, *(task(n + 1) for n in range(1, workers))]
        self._made = 0
        self.data = self.load()
        super().__init__(f"learn{self.name}{workers}", target)

    @abstractmethod
    def load(self) -> Data:
        """The data to train on."""

    @abstractmethod
    def shapes(self) -> list[tuple[int, ...]]:
        """The shapes of the dense variables."""

    @abstractmethod
    def loss(self, values: list[tf.Tensor], inputs: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        """The mean cross entropy of a batch, on a worker."""

    def inputs(self, fed: tf.Tensor) -> tf.Tensor:
        """The inputs of `loss` for a batch; a model with tables looks up rows."""
        return fed

    def apply_rows(self, fed: list[tf.Tensor], gradients: list[tf.Tensor]) -> list[tf.Operation]:
        """The updates of tables, from each worker's gradients of `inputs`."""
        del fed, gradients
        return []

    def build(self) -> None:
        with tf.device(OWNER):
            variables = [
                v1.get_variable(
                    f"p{index}",
                    initializer=initial(shape, index),
                    use_resource=True,
                )
                for index, shape in enumerate(self.shapes())
            ]
            momenta = [
                v1.get_variable(
                    f"m{index}", shape, initializer=v1.zeros_initializer(), use_resource=True
                )
                for index, shape in enumerate(self.shapes())
            ]
            values = reads_of(variables)
        self._feeds: list[tuple[tf.Tensor, tf.Tensor]] = []
        self._losses, by_worker, by_row = [], [], []
        for device in self._devices:
            fed, loss, gradients, rows = self._build_worker(device, values)
            self._feeds.append(fed)
            self._losses.append(loss)
            by_worker.append(gradients)
            by_row += rows
        with tf.device(OWNER):
            updates = [
                tf.raw_ops.ResourceApplyMomentum(
                    var=variable.handle,
                    accum=momentum.handle,
                    lr=self.rate,
                    grad=tf.add_n(gradients) / float(len(gradients)),
                    momentum=_MOMENTUM,
                    use_locking=True,
                )
                for variable, momentum, *gradients in zip(
                    variables, momenta, *by_worker, strict=True
                )
            ]
            updates += self.apply_rows([fed for fed, _ in self._feeds], by_row)
        self._train = tf.group(updates)
        self._initialise = v1.global_variables_initializer()

    def _build_worker(
        self, device: str, values: list[tf.Tensor]
    ) -> tuple[tuple[tf.Tensor, tf.Tensor], tf.Tensor, list[tf.Tensor], list[tf.Tensor]]:
        inputs, labels = self.data.held_out(self.batch)
        with tf.device(device):
            fed = (
                v1.placeholder(inputs.dtype, inputs.shape),
                v1.placeholder(labels.dtype, labels.shape),
            )
            given = self.inputs(fed[0])
            loss = self.loss(values, given, fed[1])
            rows = [given] if given is not fed[0] else []
            gradients = tf.gradients(loss, values + rows)
        return fed, loss, gradients[: len(values)], gradients[len(values) :]

    def initialise(self) -> None:
        self.session.run(self._initialise)

    def before_block(self) -> None:
        """Do nothing, because each step changes the variables."""

    def step(self) -> Any:
        feeds: dict[Any, Any] = {}
        for worker, (inputs, labels) in enumerate(self._feeds):
            feeds[inputs], feeds[labels] = self.data.batch(self._made, worker, self.batch)
        self._made += 1
        losses, _ = self.session.run([self._losses, self._train], feeds)
        return [float(loss) for loss in losses]

    def check(self, fetched: Any) -> None:
        """Do nothing, because bench_converge.py compares the losses with those of another protocol."""

    def learn(self, steps: int) -> dict[str, Any]:
        """Seconds and mean losses of `steps` steps, and the loss on held-out data after them."""
        seconds, losses = [], []
        for _ in range(steps):
            start = time.perf_counter()
            each = self.step()
            seconds.append(time.perf_counter() - start)
            losses.append(sum(each) / len(each))
        inputs, labels = self.data.held_out(self.batch)
        feeds = {self._feeds[0][0]: inputs, self._feeds[0][1]: labels}
        held_out = float(self.session.run(self._losses[0], feeds))
        return {"seconds": seconds, "losses": losses, "held_out": held_out}


class DigitsNetwork(Learner):
    """Two convolutions and a wide dense layer, on images of digits: 17 MB of variables."""

    name, rate, batch, target = "digits CNN", 0.02, 32, 0.1
    _features, _hidden = 64, 1024

    def load(self) -> Data:
        return Digits()

    def shapes(self) -> list[tuple[int, ...]]:
        flat = 8 * 8 * self._features
        return [
            *((3, 3, 1, 32), (32,), (3, 3, 32, self._features), (self._features,)),
            *((flat, self._hidden), (self._hidden,), (self._hidden, 10), (10,)),
        ]

    def loss(self, values: list[tf.Tensor], inputs: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        (k0, b0, k1, b1, w0, c0, w1, c1) = values
        there = tf.nn.relu(tf.nn.conv2d(inputs, k0, 1, "SAME") + b0)
        there = tf.nn.relu(tf.nn.conv2d(there, k1, 1, "SAME") + b1)
        there = tf.reshape(there, [self.batch, -1])
        return cross_entropy(tf.matmul(tf.nn.relu(tf.matmul(there, w0) + c0), w1) + c1, labels)


class WordNetwork(Learner):
    """Predicts words from their neighbours. Only the rows of the table that are in use travel."""

    name, rate, batch, target = "word embedding", 1.0, 128, 5.7
    _width = 256

    def load(self) -> Data:
        return Words()

    def shapes(self) -> list[tuple[int, ...]]:
        return [(self._width, self.data.classes), (self.data.classes,)]

    def inputs(self, fed: tf.Tensor) -> tf.Tensor:
        if not hasattr(self, "_table"):
            with tf.device(OWNER):
                size = (self.data.classes, self._width)
                self._table = v1.get_variable(
                    "table", initializer=initial(size, 99), use_resource=True
                )
        with tf.device(OWNER):
            return tf.raw_ops.ResourceGather(
                resource=self._table.handle, indices=fed, dtype=tf.float32
            )

    def apply_rows(self, fed: list[tf.Tensor], gradients: list[tf.Tensor]) -> list[tf.Operation]:
        # Updates run in the order of the workers, because several workers may update one row.
        applied: list[tf.Operation] = []
        for ids, gradient in zip(fed, gradients, strict=True):
            with tf.control_dependencies([*applied[-1:], *gradients]):
                step = tf.raw_ops.ResourceScatterSub(
                    resource=self._table.handle, indices=ids, updates=10 * self.rate * gradient
                )
            applied.append(step)
        return applied

    def loss(self, values: list[tf.Tensor], inputs: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        (w, b) = values
        return cross_entropy(tf.matmul(tf.reduce_mean(inputs, axis=1), w) + b, labels)


LEARNERS: dict[str, type[Learner]] = {
    learner.name: learner for learner in (DigitsNetwork, WordNetwork)
}
