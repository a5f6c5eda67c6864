# SPDX-License-Identifier: Apache-2.0
"""The chief of the demo: trains with ParameterServerStrategy and a ClusterCoordinator.

A *step* is one training step on every worker at the same time: the chief schedules as many as there
are workers and waits until the parameter server has applied all their gradients. Its time is taken here,
from the first schedule to the end of the wait; reading losses back for display is not part of it.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from rdmatensor.demo.control import Line
from rdmatensor.demo.model import Digits, Perceptron, mean_loss
from rdmatensor.demo.paths import require_plugin, task_paths
from rdmatensor.demo.settings import BATCH, LEARNING_RATE, SEED, WARM_UP_STEPS

REPORT_EVERY = 10


@dataclass(frozen=True)
class Run:
    """What the launcher asked for."""

    cluster: dict[str, list[str]]
    protocol: str
    steps: int
    hidden: int

    @property
    def workers(self) -> int:
        """The number of worker tasks."""
        return len(self.cluster["worker"])


def connect(run: Run) -> Any:
    """Returns the strategy, connected to the cluster. Nothing else names the protocol."""
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(run.cluster), task_type="chief", task_id=0, rpc_layer=run.protocol
    )
    return tf.distribute.ParameterServerStrategy(resolver)


def make_train_step(model: Perceptron, digits: Digits) -> Any:
    """Returns a tf.function of the update's number that draws a batch and applies its gradients.

    Which images form batch n follows from SEED and n alone, so every protocol trains on the same.
    The data are constants of the function and live on the workers; variables live on the parameter
    server, which also applies the gradients.
    """
    batches_per_epoch = len(digits.train_images) // BATCH

    @tf.function(input_signature=[tf.TensorSpec([], tf.int64)])  # type: ignore[untyped-decorator]
    def train_step(number: tf.Tensor) -> tf.Tensor:
        order = tf.random.experimental.stateless_shuffle(
            tf.range(len(digits.train_images)), seed=tf.stack([SEED, number // batches_per_epoch])
        )
        first = tf.cast(number % batches_per_epoch, tf.int32) * BATCH
        chosen = order[first : first + BATCH]
        images = tf.gather(digits.train_images, chosen)
        labels = tf.gather(digits.train_labels, chosen)
        with tf.GradientTape() as tape:
            loss = mean_loss(model.logits(images), labels)
        gradients = tape.gradient(loss, model.parameters)
        for variable, gradient in zip(model.parameters, gradients, strict=True):
            tf.raw_ops.ResourceApplyGradientDescent(
                var=variable.handle, alpha=LEARNING_RATE, delta=gradient, use_locking=True
            )
        return loss

    return train_step


def make_evaluation(model: Perceptron, digits: Digits) -> Any:
    """Returns a tf.function that computes loss and accuracy on the test images."""

    @tf.function(input_signature=[])  # type: ignore[untyped-decorator]
    def evaluate() -> tuple[tf.Tensor, tf.Tensor]:
        scores = model.logits(tf.constant(digits.test_images))
        found = tf.argmax(scores, axis=1, output_type=tf.int32)
        accuracy = tf.reduce_mean(tf.cast(tf.equal(found, digits.test_labels), tf.float32))
        return mean_loss(scores, tf.constant(digits.test_labels)), accuracy

    return evaluate


def train(run: Run, line: Line) -> dict[str, Any]:
    """Connects, trains and evaluates. Sends progress to the launcher and returns the results."""
    strategy = connect(run)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    digits = Digits.load(SEED)
    with strategy.scope():
        model = Perceptron(run.hidden, SEED)
    train_step = make_train_step(model, digits)
    losses: list[float] = []
    times: list[float] = []
    unread: list[Any] = []
    for step in range(WARM_UP_STEPS + run.steps):
        first = step * run.workers
        numbers = [tf.constant(first + index, tf.int64) for index in range(run.workers)]
        start = time.perf_counter()
        unread += [coordinator.schedule(train_step, args=(number,)) for number in numbers]
        coordinator.join()
        times.append(time.perf_counter() - start)
        if (step + 1) % REPORT_EVERY == 0 or step == WARM_UP_STEPS + run.steps - 1:
            losses += [float(value) for value in coordinator.fetch(unread)]
            unread.clear()
            line.emit("progress", step=step + 1, loss=losses[-1])
    results = coordinator.schedule(make_evaluation(model, digits))
    coordinator.join()
    test_loss, accuracy = results.fetch()
    return {
        "step_seconds": times[WARM_UP_STEPS:],
        "losses": losses,
        "test_loss": float(test_loss),
        "accuracy": float(accuracy),
    }


def main() -> None:
    """Takes the fields of `Run` as JSON from the argument."""
    # Wait for workers that have not started yet, instead of failing the first call.
    os.environ.setdefault("GRPC_FAIL_FAST", "use_caller")
    line = Line()
    watch = line.leave_when_closed()
    run = Run(**json.loads(sys.argv[1]))
    require_plugin(run.protocol)
    results = train(run, line)
    line.emit("result", **results, paths=task_paths(run.protocol).as_json())
    watch.join()


if __name__ == "__main__":
    main()
