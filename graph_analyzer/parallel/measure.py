# SPDX-License-Identifier: Apache-2.0
"""Measure how long layers take on this machine."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

from .layers import Layer
from .timeline import Compute

_TIMES = 3
_ENOUGH_S = 1.0  # a layer that takes so long is measured once


def measure(layers: Sequence[Layer], batch: int) -> list[Compute]:
    """Return the seconds in each layer, from the fastest of several batches of 1 and of `batch`, at least 2.

    Small batches compute more slowly: a line through both has a part that does not depend on the size. Dense
    layers and convolutions are computed; the others take what their operations take at the mean speed of
    those.
    """
    found = [
        _line(_layer(each, 1), _layer(each, batch), batch) if each.can_be_cut else None
        for each in layers
    ]
    known = [(each, c) for each, c in zip(layers, found, strict=True) if c is not None]
    flops = sum(3 * each.flops for each, _ in known)
    seconds = sum(c.ahead(batch) + c.back(batch) for _, c in known) / batch
    pace = seconds / flops if flops else 1e-10
    return [
        c or Compute(each.flops * pace, 2 * each.flops * pace)
        for each, c in zip(layers, found, strict=True)
    ]


def _line(one: Sequence[float], many: Sequence[float], batch: int) -> Compute:
    """Fit a line through the times of a batch of one and of `batch`, each forward and backward."""
    each = [max(b - a, 0.0) / (batch - 1) for a, b in zip(one, many, strict=True)]
    each = [min(x, b / batch) or b / batch for x, b in zip(each, many, strict=True)]
    return Compute(each[0], each[1], many[0] - batch * each[0], many[1] - batch * each[1])


def _layer(layer: Layer, batch: int) -> tuple[float, float]:
    """Return the seconds of a batch, forward and backward."""
    import tensorflow as tf

    kernel = tf.random.normal(layer.kernel)
    if layer.image:
        x = tf.random.normal((batch, *layer.image, layer.kernel[2]))
        same = math.prod(-(-size // layer.stride) for size in layer.image)
        padding = "SAME" if layer.positions == same else "VALID"

        def forward(value: Any, weights: Any) -> Any:
            return tf.nn.conv2d(value, weights, layer.stride, padding)
    else:
        x = tf.random.normal((batch * layer.positions, layer.kernel[0]))

        def forward(value: Any, weights: Any) -> Any:
            return tf.matmul(value, weights)

    @tf.function  # type: ignore[untyped-decorator]
    def both(value: Any, weights: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch((value, weights))
            result = forward(value, weights)
        return tape.gradient(result, (value, weights), output_gradients=result)

    alone, nothing = tf.function(forward), tf.function(lambda value: value)
    call = _seconds(lambda: nothing(kernel))
    ahead = _seconds(lambda: alone(x, kernel)) - call
    return max(ahead, 0.0), max(_seconds(lambda: both(x, kernel)) - call - max(ahead, 0.0), 0.0)


def _seconds(act: Callable[[], Any]) -> float:
    act()
    found: list[float] = []
    while len(found) < _TIMES and sum(found) < _ENOUGH_S:
        began = time.perf_counter()
        act()
        found.append(time.perf_counter() - began)
    return min(found)


def whole_step(model: Any, batch: int) -> float:
    """Return the seconds of a batch in both passes of a Keras model, without the optimizer."""
    import tensorflow as tf

    inputs = [
        tf.random.uniform((batch, *each.shape[1:]))
        if "float" in each.dtype
        else tf.zeros((batch, *each.shape[1:]), each.dtype)
        for each in model.inputs
    ]

    @tf.function  # type: ignore[untyped-decorator]
    def step() -> Any:
        with tf.GradientTape() as tape:
            outputs = tf.nest.flatten(
                model(inputs[0] if len(inputs) == 1 else inputs, training=True)
            )
            loss = tf.add_n([tf.reduce_sum(each) for each in outputs])
        return [x for x in tape.gradient(loss, model.trainable_variables) if x is not None]

    return _seconds(step)
