# SPDX-License-Identifier: Apache-2.0
"""Let BatchNormalization(synchronized=True) normalize by the batch of all processes.

Keras computes such moments with TensorFlow's strategies, of which there is none here, and ignores the
argument where there is a mask. What it calls is replaced once; the replacements act while this process is in
a group, and only where `synchronized` is true.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from ....errors import UsageError
from ...run.membership import Membership
from . import operations
from .weighing import presence

_replaced = False


def synchronize_moments(together: Callable[[], Membership | None]) -> None:
    """Let moments that are synchronized be those of the processes that `together` returns, if any."""
    global _replaced
    if _replaced or keras.backend.backend() != "tensorflow":
        return
    from keras.src.backend.tensorflow import nn

    _replaced = True
    keras_moments = nn._compute_moments_sync
    keras_masked = keras.layers.BatchNormalization._moments

    def moments(x: Any, axes: Any, keepdims: bool) -> Any:
        run = together()
        if run is None:
            return keras_moments(x, axes, keepdims)
        return _moments(run, x, tf.ones_like(x), axes, keepdims)

    def masked(layer: Any, inputs: Any, mask: Any) -> Any:
        run = together()
        if run is None or mask is None or not layer.synchronized:
            return keras_masked(layer, inputs, mask)
        weights = tf.cast(tf.cast(mask, tf.bool)[..., tf.newaxis], inputs.dtype)
        weights = tf.broadcast_to(weights, tf.shape(inputs))
        return _moments(run, inputs, weights, layer._reduction_axes, False)

    nn._compute_moments_sync = moments
    keras.layers.BatchNormalization._moments = masked


def check(model: Any, waits: bool) -> None:
    """Raise UsageError if processes that do not wait for each other should normalize together."""
    for layer in model._flatten_layers():
        if getattr(layer, "synchronized", False) is True and not waits:
            raise UsageError(
                f"the layer {layer.name} has synchronized=True, for which processes wait for each other in "
                "every step, and the synchronizer waits for nobody: use one that waits, or "
                "synchronized=False"
            )


@operations.no_autograph
def _moments(run: Membership, x: Any, weights: Any, axes: Any, keepdims: bool) -> Any:
    """Return mean and variance over all processes. Each value counts as often as `weights` says.

    Processes send their counts, means and sums of squared deviations. Sums of squares, as Keras adds them up,
    lose digits where means are large.
    """
    axes = list(axes)
    present = presence()
    if present is not None:
        weights *= tf.cast(present.here, weights.dtype)
    # What a mask hides may be anything, also NaN.
    seen = tf.where(weights > 0, x, tf.zeros_like(x))
    count = tf.reduce_sum(weights, axes, keepdims=True)
    mean = tf.math.divide_no_nan(tf.reduce_sum(seen, axes, keepdims=True), count)
    squares = tf.reduce_sum(weights * tf.square(seen - mean), axes, keepdims=True)
    own = tf.stack([count, mean, squares])[tf.newaxis]
    every = operations.all_gather(run, own, "moments of synchronized batches")
    counts, means, sums = every[:, 0], every[:, 1], every[:, 2]
    total = tf.reduce_sum(counts, 0)
    center = tf.math.divide_no_nan(tf.reduce_sum(counts * means, 0), total)
    between = tf.reduce_sum(counts * tf.square(means - center), 0)
    variance = tf.math.divide_no_nan(tf.reduce_sum(sums, 0) + between, total)
    if keepdims:
        return center, variance
    return tf.squeeze(center, axes), tf.squeeze(variance, axes)
