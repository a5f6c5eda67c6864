# SPDX-License-Identifier: Apache-2.0
"""Numbers that launcher and tasks share. Nothing here imports TensorFlow, so the launcher starts at once."""

from __future__ import annotations

from itertools import pairwise
from math import prod

PIXELS = 64
CLASSES = 10
BATCH = 32
LEARNING_RATE = 0.1
SEED = 7
WARM_UP_STEPS = 5
MINIMUM_ACCURACY = 0.9


def layer_shapes(hidden: int) -> list[tuple[int, ...]]:
    """Returns the shapes of weights and biases, from the first layer to the last."""
    shapes: list[tuple[int, ...]] = []
    for fan_in, fan_out in pairwise([PIXELS, hidden, hidden, CLASSES]):
        shapes += [(fan_in, fan_out), (fan_out,)]
    return shapes


def model_bytes(hidden: int) -> int:
    """Returns the bytes of all variables (float32)."""
    return sum(4 * prod(shape) for shape in layer_shapes(hidden))
