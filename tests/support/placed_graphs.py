# SPDX-License-Identifier: Apache-2.0
"""Small graphs over several tasks, with what a session runs of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf

v1 = tf.compat.v1

PS = "/job:ps/task:0"
WORKERS = ("/job:worker/task:0", "/job:worker/task:1")


@dataclass
class Step:
    """A graph, what is fetched, what is fed (by placeholder), and its initialiser."""

    graph: Any
    fetches: list[Any]
    values: dict[Any, Any] = field(default_factory=dict)
    start: Any = None

    @property
    def feeds(self) -> list[Any]:
        return list(self.values)


def _variable(name: str, shape: list[int], resource: bool = True) -> Any:
    ones = v1.ones_initializer()
    return v1.get_variable(name, shape, initializer=ones, use_resource=resource)


def training(batch: int | None = 8) -> Step:
    """Two workers, a resource variable and a reference variable on the parameter server."""
    graph = tf.Graph()
    with graph.as_default():
        with tf.device(PS):
            w, bias = _variable("w", [64, 32]), _variable("bias", [32], resource=False)
        x = v1.placeholder(tf.float32, [batch, 64], "x")
        with tf.device(WORKERS[0]):
            y = tf.matmul(x, w) + bias
        with tf.device(WORKERS[1]):
            count = tf.cast(tf.reduce_sum(tf.shape(y)), tf.float32)
            loss = tf.reduce_sum(tf.nn.relu(tf.matmul(x, w))) + count + tf.reduce_sum(y)
        with tf.device(WORKERS[0]):
            gradients = v1.gradients(loss, [w, bias])
        optimizer = v1.train.GradientDescentOptimizer(0.1)
        update = optimizer.apply_gradients(zip(gradients, [w, bias], strict=True))
        start = v1.global_variables_initializer()
    return Step(graph, [update, loss], {x: np.ones((8, 64), np.float32)}, start)


def loop(v2: bool = True) -> Step:
    """A loop of worker 1 whose body multiplies on worker 0 by a variable of the parameter server."""
    was_v2 = v1.control_flow_v2_enabled()
    (v1.enable_control_flow_v2 if v2 else v1.disable_control_flow_v2)()
    graph = tf.Graph()
    try:
        with graph.as_default():
            x = v1.placeholder(tf.float32, [4], "x")
            with tf.device(PS):
                w = _variable("w", [4])
                turns = tf.constant(3)

            def body(turn: Any, value: Any) -> Any:
                with tf.device(WORKERS[0]):
                    return turn + 1, value * w + w.read_value()

            with tf.device(WORKERS[1]):
                _, result = tf.while_loop(lambda turn, value: turn < turns, body, [0, x])
            start = v1.global_variables_initializer()
    finally:
        (v1.enable_control_flow_v2 if was_v2 else v1.disable_control_flow_v2)()
    return Step(graph, [result], {x: np.ones(4, np.float32)}, start)


def nested_loop() -> Step:
    """Two loops, one in the other, with a tensor that travels in the outer one only."""
    graph = tf.Graph()
    with graph.as_default():
        x = v1.placeholder(tf.float32, [4], "x")

        def outer(turn: Any, value: Any) -> Any:
            with tf.device(WORKERS[0]):
                _, inner = tf.while_loop(
                    lambda i, v: i < 2, lambda i, v: (i + 1, v + 1.0), [0, value]
                )
                sum_ = tf.add(inner, 1.0, name="after_inner")
            with tf.device(WORKERS[1]):
                return turn + 1, tf.multiply(sum_, 2.0, name="elsewhere")

        with tf.device(WORKERS[1]):
            _, result = tf.while_loop(lambda turn, value: turn < 2, outer, [0, x])
    return Step(graph, [result], {x: np.ones(4, np.float32)})


def conditional() -> Step:
    """A branch that is not taken sends dead tensors; a string travels, too."""
    graph = tf.Graph()
    with graph.as_default():
        x = v1.placeholder(tf.float32, [4], "x")
        with tf.device(PS):
            w = _variable("w", [4])
        with tf.device(WORKERS[1]):
            chosen = tf.cond(tf.reduce_sum(x) > 0, lambda: w * 2.0, lambda: w * 3.0)
        with tf.device(WORKERS[0]):
            text = tf.strings.as_string(chosen)
        with tf.device(WORKERS[1]):
            joined = tf.strings.join([text, text])
        start = v1.global_variables_initializer()
    return Step(graph, [joined], {x: np.ones(4, np.float32)}, start)


def unplaced() -> Step:
    """Nodes without devices go where TensorFlow's placer puts them."""
    graph = tf.Graph()
    with graph.as_default():
        with tf.device(WORKERS[1]):
            far = tf.random.uniform([8, 8], name="far")
        size = tf.size(far, name="size")
        constant = tf.constant(2.0, name="constant")
        with tf.device(WORKERS[1]):
            scaled = far * constant
        with tf.device(WORKERS[0]):
            near = tf.reduce_sum(scaled) + tf.cast(size, tf.float32)
        with v1.colocate_with(far.op):
            beside = tf.reduce_max(near, name="beside")
    return Step(graph, [beside, far])


def constants() -> Step:
    """Constants of several sizes that two tasks use, and one that another operation waits for."""
    graph = tf.Graph()
    with graph.as_default():
        with tf.device(PS):
            scalar, small = tf.constant(2.0, name="scalar"), tf.constant([1.0] * 16, name="small")
            large = tf.constant([1.0] * 17, name="large")
            awaited = tf.constant(3.0, name="awaited")
        results = []
        for worker in WORKERS:
            with tf.device(worker):
                results.append(tf.random.uniform([16]) * small * scalar * awaited)
                results.append(tf.reduce_sum(large * scalar) + tf.random.uniform([]))
        with tf.device(WORKERS[0]), tf.control_dependencies([awaited]):
            results.append(tf.random.uniform([3], name="after"))
    return Step(graph, results)


STEPS: dict[str, Callable[[], Step]] = {
    "training": training,
    "unknown batch": lambda: training(batch=None),
    "conditional": conditional,
    "loop of Enter and Exit": lambda: loop(v2=False),
    "While": loop,
    "nested": nested_loop,
    "unplaced": unplaced,
    "constants": constants,
}
