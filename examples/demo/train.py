# SPDX-License-Identifier: Apache-2.0
"""Train a classifier of handwritten digits with ParameterServerStrategy. Each task runs this program.

    rdmatensor launch -n 2 --ps 1 examples/demo/train.py

A step is one training step on every worker at the same time. The chief times it, from the first schedule to
the last update. The other tasks serve until the launcher ends them. The output is lines of JSON, which
compare.py reads.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from itertools import pairwise
from typing import Any

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

BATCH = 32
LEARNING_RATE = 0.1
SEED = 7
WARM_UP_STEPS = 5
REPORT_EVERY = 10


def say(event: str, **fields: Any) -> None:
    """Print a line for compare.py."""
    print(json.dumps({"event": event, **fields}), flush=True)


def leave(protocol: str) -> None:
    """Say how this task's tensors travelled, and exit at once, because TensorFlow's servers do not end."""
    if protocol != "grpc":
        from rdmatensor.tensorflow import stats

        counts: dict[str, Any] = dict(stats())
        names = ("paths", "transports", "rpc_reasons", "peers")
        say("sent", **{name: counts[name] for name in names})
    os._exit(0)


def digits() -> list[tuple[Any, Any]]:
    """Return images as rows of 64 floats in 0..1, and labels 0..9: 1437 for training, 360 for the test."""
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(SEED).permutation(len(images))
    images, labels = (images[order] / 16).astype(np.float32), labels[order].astype(np.int32)
    return [(images[360:], labels[360:]), (images[:360], labels[:360])]


def initial(hidden: int) -> list[Any]:
    """Return weights as He et al. draw them, and zeros for biases, of two hidden layers and an output."""
    values = []
    for number, shape in enumerate(pairwise([64, hidden, hidden, 10])):
        weights = tf.random.stateless_normal(shape, [SEED, number], stddev=(2 / shape[0]) ** 0.5)
        values += [weights, tf.zeros(shape[1:])]
    return values


def scores_of(parameters: list[Any], images: Any) -> Any:
    """Return [batch, 10] scores of [batch, 64] images."""
    (w0, b0, w1, b1, w2, b2) = parameters
    first = tf.nn.relu(tf.matmul(images, w0) + b0)
    second = tf.nn.relu(tf.matmul(first, w1) + b1)
    return tf.matmul(second, w2) + b2


def loss_of(scores: Any, labels: Any) -> Any:
    """Return the mean cross entropy of [batch, 10] scores."""
    each = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=scores)
    return tf.reduce_mean(each)


def functions(parameters: list[Any]) -> tuple[Any, Any]:
    """Return the step, which takes the number of its batch, and the test.

    Batch n follows from SEED and n alone, so every protocol trains on the same images. They are constants and
    lie on the workers. The variables lie on the parameter server, which applies the gradients.
    """
    (images, labels), (test_images, test_labels) = digits()
    batches = len(images) // BATCH

    @tf.function(input_signature=[tf.TensorSpec([], tf.int64)])
    def step(number: Any) -> Any:
        order = tf.random.experimental.stateless_shuffle(
            tf.range(len(images)), seed=tf.stack([SEED, number // batches])
        )
        first = tf.cast(number % batches, tf.int32) * BATCH
        chosen = order[first : first + BATCH]
        with tf.GradientTape() as tape:
            scores = scores_of(parameters, tf.gather(images, chosen))
            loss = loss_of(scores, tf.gather(labels, chosen))
        for variable, gradient in zip(parameters, tape.gradient(loss, parameters), strict=True):
            tf.raw_ops.ResourceApplyGradientDescent(
                var=variable.handle, alpha=LEARNING_RATE, delta=gradient, use_locking=True
            )
        return loss

    @tf.function(input_signature=[])
    def test() -> tuple[Any, Any]:
        scores = scores_of(parameters, tf.constant(test_images))
        right = tf.equal(tf.argmax(scores, axis=1, output_type=tf.int32), test_labels)
        return loss_of(scores, test_labels), tf.reduce_mean(tf.cast(right, tf.float32))

    return step, test


def train(resolver: Any, steps: int, hidden: int) -> None:
    """Run in the chief: train, test, and say how it went."""
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        parameters = [tf.Variable(value) for value in initial(hidden)]
    step, test = functions(parameters)
    workers = len(resolver.cluster_spec().job_tasks("worker"))
    results: list[Any] = []
    seconds: list[float] = []
    for number in range(WARM_UP_STEPS + steps):
        batches = [tf.constant(number * workers + index, tf.int64) for index in range(workers)]
        start = time.perf_counter()
        results += [coordinator.schedule(step, args=(batch,)) for batch in batches]
        coordinator.join()
        seconds.append(time.perf_counter() - start)
        if len(seconds) == REPORT_EVERY or number == WARM_UP_STEPS + steps - 1:
            losses = [float(value) for value in coordinator.fetch(results)]
            say("steps", losses=losses, seconds=seconds)
            results, seconds = [], []
    tested = coordinator.schedule(test)
    coordinator.join()
    test_loss, accuracy = (float(value) for value in tested.fetch())
    nbytes = sum(4 * variable.shape.num_elements() for variable in parameters)
    say("result", test_loss=test_loss, accuracy=accuracy, variable_bytes=nbytes)


def serve(resolver: Any) -> Any:
    """Start the server of a worker or of the parameter server."""
    config = tf.compat.v1.ConfigProto()
    # Each worker may hold a thread of the parameter server; few processors would leave none for the others.
    config.inter_op_parallelism_threads = len(resolver.cluster_spec().job_tasks("worker")) + 4
    return tf.distribute.Server(
        resolver.cluster_spec(),
        job_name=resolver.task_type,
        task_index=resolver.task_id,
        protocol=resolver.rpc_layer,
        config=config,
    )


def main() -> None:
    """Do what TF_CONFIG says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--hidden", type=int, default=2048)
    asked = parser.parse_args()
    # Wait for tasks that have not started yet, instead of failing the first call.
    os.environ.setdefault("GRPC_FAIL_FAST", "use_caller")
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    protocol = resolver.rpc_layer
    if protocol != "grpc":
        from rdmatensor.tensorflow import loaded, why_not

        if not loaded():
            sys.exit(f"{protocol} is not available: {why_not()}")
    if resolver.task_type == "chief":
        train(resolver, asked.steps, asked.hidden)
        leave(protocol)
    signal.signal(signal.SIGTERM, lambda *_: leave(protocol))
    _server = serve(resolver)
    while True:
        time.sleep(1)


if __name__ == "__main__":
    main()
