# SPDX-License-Identifier: Apache-2.0
"""Compute dense layers of which each process of a group has a strip.

Inside a group, activations have one of two forms. As rows, a process has all values of its own examples. As
strips, it has its part of the values of all examples of the group. A layer that is cut by columns takes the
rows of all, and gives strips; one that is cut by rows takes strips, and gives rows. Between two such layers,
nothing travels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import keras
import tensorflow as tf

from ..backend import mixin
from ..backend.names import plain
from ..backend.tensorflow import operations
from ..keras.saving import Whole
from .groups import Groups
from .slices import bounds, cut, widest

Mode = Literal["column", "row"]


@dataclass(frozen=True)
class LayerCut:
    """The cut of a layer, and the form of what it takes and gives."""

    groups: Groups
    mode: Mode
    takes_strips: bool = False
    gives_strips: bool = False


class CutDense(Whole):
    """The class that `cut_layer` puts in front of a Dense layer's."""

    _rdmatensor_layer_cut: LayerCut

    def call(self, inputs: Any, training: Any = None) -> Any:
        """Compute this process's part of the layer's result; see LayerCut for its form."""
        layer: Any = self
        layer_cut, name = self._rdmatensor_layer_cut, plain(layer.name)
        groups = layer_cut.groups
        if layer_cut.mode == "column":
            result = keras.ops.matmul(
                operations.all_gather(groups.inside, inputs, f"inputs of {name}"), layer.kernel
            )
            if layer.bias is not None:
                result = keras.ops.add(result, layer.bias)
            if not layer_cut.gives_strips:
                result = as_rows(groups, result, layer.units, f"outputs of {name}")
        else:
            if not layer_cut.takes_strips:
                inputs = as_strips(groups, inputs, f"inputs of {name}")
            result = keras.ops.matmul(inputs, layer.kernel)
            result = operations.reduce_scatter(groups.inside, result, "sum", f"outputs of {name}")
            if layer.bias is not None:
                result = keras.ops.add(result, layer.bias)
        return result if layer.activation is None else layer.activation(result)

    @property
    def _rdmatensor_saved(self) -> list[Any]:
        layer: Any = self
        return [each for each in (layer._kernel, layer.bias) if each is not None]


def cut_layer(layer: Any, layer_cut: LayerCut) -> None:
    """Leave this process's strip in a layer that is built. It keeps the name and module of its class."""
    cut(layer._kernel, 1 if layer_cut.mode == "column" else 0, layer_cut.groups)
    if layer_cut.mode == "column" and layer.bias is not None:
        cut(layer.bias, 0, layer_cut.groups)
    layer.input_spec = keras.layers.InputSpec(min_ndim=2)
    mixin.add(layer, CutDense, _rdmatensor_layer_cut=layer_cut)


@operations.no_autograph
def as_strips(groups: Groups, rows: Any, name: str) -> Any:
    """Exchange rows for strips: each process gets its part of the last dimension, for all examples."""
    length, size = int(rows.shape[-1]), groups.size
    width = widest(length, size)
    parts = []
    for index in range(size):
        start, stop = bounds(length, size, index)
        parts.append(_padded(rows[..., start:stop], width))
    found = operations.all_to_all(groups.inside, tf.concat(parts, 0), name)
    start, stop = bounds(length, size, groups.place)
    return found[..., : stop - start]


@operations.no_autograph
def as_rows(groups: Groups, strips: Any, length: int, name: str) -> Any:
    """Exchange strips for rows: each process gets the whole last dimension, for its own examples."""
    size = groups.size
    found = operations.all_to_all(groups.inside, _padded(strips, widest(length, size)), name)
    parts = []
    for index, part in enumerate(tf.split(found, size)):
        start, stop = bounds(length, size, index)
        parts.append(part[..., : stop - start])
    return tf.concat(parts, -1)


def _padded(tensor: Any, width: int) -> Any:
    more = width - int(tensor.shape[-1])
    return tf.pad(tensor, [[0, 0]] * (tensor.shape.rank - 1) + [[0, more]]) if more else tensor
