# SPDX-License-Identifier: Apache-2.0
"""Models that learn: a parameter server has the variables, and workers compute on batches.

Each step makes one update: gradients of all workers are averaged in the order of the workers. So the result
depends neither on the speed of a worker nor on the transport.
"""

from __future__ import annotations

from abc import abstractmethod
from math import prod
from typing import Any

import numpy as np
import tensorflow as tf

from converge_data import Data, Digits, Words
from member import timed_values
from tf_cases import TRAINING_SHAPES
from tf_graphs import CONSUMER, OWNER, Workload, task

v1 = tf.compat.v1

_SEED = 7


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


def mean(gradients: list[tf.Tensor]) -> tf.Tensor:
    """The mean of all workers' gradients."""
    several = len(gradients)
    return tf.add_n(gradients) / float(several) if several > 1 else gradients[0]


class Learner(Workload):
    """Trains one model with `workers` workers, each on `batch` examples per step."""

    name: str
    data: Data
    rate: float
    batch: int
    target: float
    momentum = 0.9

    def __init__(self, workers: int, target: str) -> None:
        # Without a target, there is only this process.
        self._owner = OWNER if target else ""
        devices = [CONSUMER, *(task(n + 1) for n in range(1, workers))]
        self._devices = devices if target else [""] * workers
        self._made = 0
        super().__init__(f"learn{self.name}{workers}", target)

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
        with tf.device(self._owner):
            variables = [
                v1.get_variable(f"p{i}", initializer=initial(shape, i), use_resource=True)
                for i, shape in enumerate(self.shapes())
            ]
            values = reads_of(variables)
        self._feeds: list[tuple[tf.Tensor, tf.Tensor]] = []
        self._losses, by_worker, by_row = [], [], []
        inputs, labels = self.data.held_out(self.batch)
        for device in self._devices:
            with tf.device(device):
                fed = v1.placeholder(inputs.dtype, inputs.shape)
                truth = v1.placeholder(labels.dtype, labels.shape)
                given = self.inputs(fed)
                loss = self.loss(values, given, truth)
                rows = [given] if given is not fed else []
                gradients = tf.gradients(loss, values + rows)
            self._feeds.append((fed, truth))
            self._losses.append(loss)
            by_worker.append(gradients[: len(values)])
            by_row += gradients[len(values) :]
        with tf.device(self._owner):
            updates = [
                self._update(variable, mean(gradients))
                for variable, *gradients in zip(variables, *by_worker, strict=True)
            ]
            updates += self.apply_rows([fed for fed, _ in self._feeds], by_row)
        self._train = tf.group(updates)
        self._initialise = v1.global_variables_initializer()

    def _update(self, variable: Any, gradient: tf.Tensor) -> tf.Operation:
        if not self.momentum:
            return tf.raw_ops.ResourceApplyGradientDescent(
                var=variable.handle, alpha=self.rate, delta=gradient, use_locking=True
            )
        zeros = v1.zeros_initializer()
        name = f"m{variable.op.name}"
        momentum = v1.get_variable(name, variable.shape, initializer=zeros, use_resource=True)
        return tf.raw_ops.ResourceApplyMomentum(
            var=variable.handle,
            accum=momentum.handle,
            lr=self.rate,
            grad=gradient,
            momentum=self.momentum,
            use_locking=True,
        )

    def initialise(self) -> None:
        self.session.run(self._initialise)

    def step(self) -> Any:
        feeds: dict[Any, Any] = {}
        for worker, (inputs, labels) in enumerate(self._feeds):
            feeds[inputs], feeds[labels] = self.next(worker)
        self._made += 1
        losses, _ = self.session.run([self._losses, self._train], feeds)
        return [float(loss) for loss in losses]

    def next(self, worker: int) -> Any:
        """The inputs and labels of a worker in the next step."""
        return self.data.batch(self._made, worker, self.batch)

    def losses(self, fetched: list[Any]) -> list[Any]:
        return fetched

    def learn(self, steps: int) -> dict[str, Any]:
        """Seconds and mean losses of `steps` steps, and the loss on held-out data after them."""
        seconds, losses = timed_values(self.step, steps)
        losses = [sum(each) / len(each) for each in losses]
        inputs, labels = self.data.held_out(self.batch)
        feeds = {self._feeds[0][0]: inputs, self._feeds[0][1]: labels}
        held_out = float(self.session.run(self._losses[0], feeds))
        return {"seconds": seconds, "losses": losses, "held_out": held_out}


class Perceptron(Learner):
    """Three dense layers with 17 MB of variables, on the same images in each step, by gradient descent."""

    name, rate, momentum = "training", 0.01, 0.0

    def __init__(self, batch: int, target: str) -> None:
        self.batch, self.data = batch, Digits()
        self._batch = self.data.batch(0, 0, batch)
        super().__init__(1, target)

    def next(self, worker: int) -> Any:
        return self._batch

    def shapes(self) -> list[tuple[int, ...]]:
        return TRAINING_SHAPES

    def loss(self, values: list[tf.Tensor], inputs: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        w0, b0, w1, b1, w2, b2 = values
        there = tf.nn.relu(tf.matmul(tf.reshape(inputs, [self.batch, -1]), w0) + b0)
        there = tf.nn.relu(tf.matmul(there, w1) + b1)
        return cross_entropy(tf.matmul(there, w2) + b2, labels)

    def check(self, fetched: Any) -> None:
        if not np.isfinite(fetched).all():
            raise ValueError(f"the loss is {fetched}")


class DigitsNetwork(Learner):
    """Two convolutions and a wide dense layer, on images of digits: 17 MB of variables."""

    name, rate, batch, target = "digits CNN", 0.02, 32, 0.1
    _features, _hidden = 64, 1024

    def __init__(self, workers: int, target: str) -> None:
        self.data = Digits()
        super().__init__(workers, target)

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

    def __init__(self, workers: int, target: str) -> None:
        self.data: Words = Words()
        super().__init__(workers, target)

    def shapes(self) -> list[tuple[int, ...]]:
        return [(self._width, self.data.classes), (self.data.classes,)]

    def inputs(self, fed: tf.Tensor) -> tf.Tensor:
        if not hasattr(self, "_table"):
            with tf.device(self._owner):
                size = (self.data.classes, self._width)
                self._table = v1.get_variable(
                    "table", initializer=initial(size, 99), use_resource=True
                )
        with tf.device(self._owner):
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
