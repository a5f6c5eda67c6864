# SPDX-License-Identifier: Apache-2.0
"""One training run with fixed seeds: train.py PROTOCOL graph|strategy. Prints its losses as JSON.

Starts its own servers: this process is the client (and the coordinator), the others run server.py.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
import numpy as np
import tensorflow as tf

import rdmatensor.tensorflow
from support.clusters import Task
from support.coordinators import strategy_of_chief
from support.ports import free_ports
from support.waits import until_settled

STEPS = 12
HIDDEN = 200


def _data() -> tuple[Any, Any]:
    random = np.random.default_rng(3)
    x = random.normal(size=(64, 100)).astype("f")
    return x, np.tanh(x @ random.normal(size=(100, 10)).astype("f"))


def _initial() -> list[Any]:
    random = np.random.default_rng(5)
    return [
        random.normal(scale=0.1, size=shape).astype("f")
        for shape in ((100, HIDDEN), (HIDDEN, HIDDEN), (HIDDEN, 10))
    ]


def _loss(x: Any, y: Any, weights: list[Any]) -> Any:
    for weight in weights[:-1]:
        x = tf.nn.relu(x @ weight)
    return tf.reduce_mean((x @ weights[-1] - y) ** 2)


def _run(step: Callable[[], Any], forget: Callable[[], None]) -> list[str]:
    """The losses of all steps; what the first one sent is not counted."""
    losses = [step()]
    forget()
    losses += [step() for _ in range(STEPS - 1)]
    return [np.asarray(loss).tobytes().hex() for loss in losses]


def train_in_a_session(target: str, forget: Callable[[], None]) -> list[str]:
    """Variables on ps 0, the rest on worker 0, by gradient descent."""
    v1 = tf.compat.v1
    x, y = _data()
    with tf.Graph().as_default():
        with tf.device("/job:ps/task:0"):
            weights = [
                v1.get_variable(f"w{i}", initializer=w, use_resource=True)
                for i, w in enumerate(_initial())
            ]
        with tf.device("/job:worker/task:0"):
            fed = v1.placeholder(tf.float32, [None, 100])
            loss = _loss(fed, y, [w.read_value() for w in weights])
            gradients = tf.gradients(loss, weights)
        with tf.device("/job:ps/task:0"):
            updates = [
                tf.raw_ops.ResourceApplyGradientDescent(var=w.handle, alpha=0.1, delta=g)
                for w, g in zip(weights, gradients, strict=True)
            ]
        with v1.Session(target) as session:
            session.run(v1.global_variables_initializer())
            return _run(lambda: session.run([loss, *updates], {fed: x})[0], forget)


def train_with_the_strategy(
    cluster: dict[str, list[str]], protocol: str, forget: Callable[[], None]
) -> list[str]:
    """The same with ParameterServerStrategy and a ClusterCoordinator."""
    strategy = strategy_of_chief(cluster, protocol)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    x, y = _data()
    with strategy.scope():
        weights = [tf.Variable(w) for w in _initial()]

    @tf.function
    def step() -> Any:
        with tf.GradientTape() as tape:
            loss = _loss(tf.constant(x), y, [w.read_value() for w in weights])
        for weight, gradient in zip(weights, tape.gradient(loss, weights), strict=True):
            weight.assign_sub(0.1 * gradient)
        return loss

    return _run(lambda: coordinator.schedule(step).fetch(), forget)


def main() -> None:
    """See the module."""
    protocol, how = sys.argv[1:]
    jobs = ["chief", "worker", "ps"] if how == "strategy" else ["worker", "ps"]
    cluster = {job: [f"127.0.0.1:{free_ports(1)[0]}"] for job in jobs}
    folder = Path(tempfile.mkdtemp())
    tasks = {job: Task(cluster, job, 0, protocol, folder / job) for job in ("worker", "ps")}
    try:
        for task in tasks.values():
            task.wait_until_ready()

        def places() -> list[int]:
            return [task.ask("stats")["plan"]["place_bytes"] for task in tasks.values()]

        def forget() -> None:
            if protocol == "grpc+rdma":
                until_settled("the tasks do not agree on places", places)
            for task in tasks.values():
                task.ask("reset")

        if how == "strategy":
            losses = train_with_the_strategy(cluster, protocol, forget)
        else:
            losses = train_in_a_session(tasks["worker"].target, forget)
        stats = {job: task.ask("stats") for job, task in tasks.items()}
        stats["client"] = rdmatensor.tensorflow.stats()
        print(json.dumps({"losses": losses, "stats": stats}), flush=True)
    finally:
        for task in tasks.values():
            task.kill()
    # Coordinators keep threads that wait for workers for ever.
    os._exit(0)


if __name__ == "__main__":
    main()
