# SPDX-License-Identifier: Apache-2.0
"""Trains Keras models on a parameter server, and prints what travelled and what was predicted.

A process of its own: it connects to the cluster for good.

    python -m support.model_task '{"ps": [...], "worker": [...]}' grpc+rdma
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import tensorflow as tf

from graph_analyzer import PlacedOn, analyze
from rdmatensor import tensorflow as rt

BATCH, STEPS = 8, 4
SERVER, HERE = "/job:ps/task:0", "/job:chief/task:0"
layers = keras.layers


class Shift(keras.layers.Layer):  # type: ignore[misc]
    """Adds a constant that was made on the server."""

    def __init__(self) -> None:
        super().__init__()
        self.table = tf.constant([[1.0] * 64] * 64)

    def call(self, x: Any) -> Any:
        return x + self.table


def recurrent(layer: Any, steps: int) -> Any:
    return keras.Sequential([keras.Input((steps, 16)), layer, layers.Dense(4)])


def embedded() -> Any:
    tokens = keras.Input((10,), dtype="int32")
    table = layers.Embedding(2000, 32)
    return keras.Model(tokens, layers.Dense(3)(layers.Flatten()(table(tokens))))


MODELS: dict[str, Callable[[], Any]] = {
    "LSTM of 12 steps": lambda: recurrent(layers.LSTM(32), 12),
    "GRU in both directions": lambda: recurrent(layers.Bidirectional(layers.GRU(8)), 5),
    "embedding": embedded,
    "a constant of the server": lambda: keras.Sequential(
        [keras.Input((64, 64)), Shift(), layers.Dense(8)]
    ),
    "normalised": lambda: keras.Sequential(
        [keras.Input((24,)), layers.Dense(32), layers.BatchNormalization(), layers.Dense(5)]
    ),
}


def step_of(model: Any) -> Callable[[Any], Any]:
    @tf.function  # type: ignore[untyped-decorator]
    def step(x: Any) -> Any:
        with tf.device(HERE):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(model(x, training=True)))
            variables = [variable.value for variable in model.trainable_variables]
            for variable, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
                if isinstance(gradient, tf.IndexedSlices):
                    variable.scatter_sub(tf.IndexedSlices(gradient.values, gradient.indices))
                else:
                    with tf.device(SERVER):
                        variable.assign_sub(0.01 * gradient)
        return loss

    return step  # type: ignore[no-any-return]


def counts() -> dict[str, tuple[int, int]]:
    """Return what this process received and sent by each path, once nothing is under way."""
    before = None
    while True:
        paths: Any = rt.stats()["paths"]
        now = {name: (each["received_bytes"], each["sent_bytes"]) for name, each in paths.items()}
        if now == before:
            return now
        before = now
        time.sleep(0.1)


def measure(name: str) -> dict[str, Any]:
    with tf.device(SERVER):
        model = MODELS[name]()
    (spec,) = model.inputs
    with tf.device(HERE):
        x = tf.identity(tf.zeros([BATCH, *spec.shape[1:]], spec.dtype))
    step = step_of(model)
    for _ in range(STEPS):
        step(x)
    before = counts()
    for _ in range(STEPS):
        step(x)
    after = counts()
    plan = analyze(model, strategy=PlacedOn(1, 1), batch_size=BATCH)
    predicted: dict[str, list[int]] = {}
    for edge in plan.edges:
        for path, nbytes in edge.paths().items():
            predicted.setdefault(path, [0, 0])["/job:ps" in edge.destination] += nbytes
    travelled = {
        path: [(now - then) / STEPS for then, now in zip(before[path], after[path], strict=True)]
        for path in after
    }
    return {"predicted": predicted, "travelled": travelled}


def main() -> None:
    cluster, protocol = json.loads(sys.argv[1]), sys.argv[2]
    tf.config.experimental_connect_to_cluster(
        tf.train.ClusterSpec(cluster), job_name="chief", task_index=0, protocol=protocol
    )
    print(json.dumps({name: measure(name) for name in MODELS}))


if __name__ == "__main__":
    main()
