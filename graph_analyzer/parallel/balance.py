# SPDX-License-Identifier: Apache-2.0
"""PCL-DNN's balance equations (arXiv 1602.06709): the bytes of each way to share a layer.

Data parallel: each worker has all weights and a part of the batch; it sends gradients of its copy, and gets
weights. Model parallel: each worker has a part of the weights; all need all inputs, and their gradients.
Hybrid: G groups, model parallel inside and data parallel between. `overlap` is the share of sending that
happens while the same worker receives: 1 for full-duplex links, 0 for half-duplex ones.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from .layers import FLOAT, Layer


def intensity(layer: Layer, batch: float, overlap: float = 1.0) -> float:
    """Return the floating point operations per byte of a data parallel layer.

    `batch` is the number of examples of each worker.
    """
    return 3 * layer.flops * batch / data_bytes(layer, overlap)


def data_bytes(layer: Layer, overlap: float = 1.0) -> float:
    """Return the bytes that a worker sends and receives in a step if the layer is data parallel."""
    return FLOAT * layer.weights * (2 - overlap)


def model_bytes(layer: Layer, batch: float) -> float:
    """Return the bytes of a worker in a step if the layer is cut; `batch` is that of all workers."""
    return 2 * FLOAT * layer.inputs * batch


def hybrid_bytes(
    layer: Layer, batch: float, workers: int, groups: float, overlap: float = 1.0
) -> float:
    """Return the bytes of a worker in a step with `groups` groups.

    With one group, gradients stay; with as many as workers, inputs do.
    """
    inside = model_bytes(layer, batch) / groups if groups < workers else 0.0
    between = data_bytes(layer, overlap) * groups / workers if groups > 1 else 0.0
    return inside + between


def best_groups(layer: Layer, batch: float, workers: int, overlap: float = 1.0) -> float:
    """Return the number of groups at which hybrid_bytes is least, as a real number."""
    return math.sqrt(2 * layer.inputs * batch * workers / (layer.weights * (2 - overlap)))


@dataclass(frozen=True)
class Choice:
    """How a layer is shared."""

    layer: Layer
    way: str
    """data, model or hybrid"""
    groups: int
    ideal: float
    """best_groups"""
    bytes: float
    data_bytes: float
    """if it were data parallel"""


def choose(layer: Layer, batch: float, workers: int, overlap: float = 1.0) -> Choice:
    """Return the choice with the fewest bytes. Its number of groups divides the number of workers."""
    data = data_bytes(layer, overlap) if workers > 1 else 0.0
    ideal = best_groups(layer, batch, workers, overlap)
    divisors = [each for each in range(1, workers + 1) if workers % each == 0]
    if not layer.can_be_cut or workers == 1:
        return Choice(layer, "data", workers, ideal, data, data)
    groups = min(divisors, key=lambda g: hybrid_bytes(layer, batch, workers, g, overlap))
    way = "data" if groups == workers else "model" if groups == 1 else "hybrid"
    found = hybrid_bytes(layer, batch, workers, groups, overlap)
    return Choice(layer, way, groups, ideal, found, data)


def choices(
    layers: Sequence[Layer], batch: float, workers: int, overlap: float = 1.0
) -> list[Choice]:
    """Return the choice for each layer."""
    return [choose(each, batch, workers, overlap) for each in layers]


def all_data(
    layers: Sequence[Layer], batch: float, workers: int, overlap: float = 1.0
) -> list[Choice]:
    """Return the choices that share every layer data parallel, as rdmatensor.train's Sharded does."""
    each = choices(layers, batch, workers, overlap)
    return [Choice(c.layer, "data", workers, c.ideal, c.data_bytes, c.data_bytes) for c in each]
