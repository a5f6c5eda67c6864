# SPDX-License-Identifier: Apache-2.0
"""Choose which layers of a model are cut, and how."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np

from ...errors import UsageError
from .layers import Mode

_ELEMENTWISE = {
    *(keras.activations.linear, keras.activations.relu, keras.activations.relu6),
    *(keras.activations.leaky_relu, keras.activations.elu, keras.activations.selu),
    *(keras.activations.celu, keras.activations.gelu, keras.activations.silu),
    *(keras.activations.sigmoid, keras.activations.hard_sigmoid, keras.activations.tanh),
    *(keras.activations.softplus, keras.activations.softsign, keras.activations.mish),
}
# What strips may pass: layers that treat each value by itself.
_PASSING = (
    keras.layers.Dropout,
    keras.layers.GaussianDropout,
    keras.layers.GaussianNoise,
    keras.layers.ReLU,
    keras.layers.LeakyReLU,
    keras.layers.ELU,
    keras.layers.Identity,
)
_SUMS = (keras.regularizers.L1, keras.regularizers.L2, keras.regularizers.L1L2)
_NORMS = (keras.constraints.MaxNorm, keras.constraints.UnitNorm, keras.constraints.MinMaxNorm)


@dataclass
class Choice:
    """A layer that is cut."""

    layer: Any
    mode: Mode
    takes_strips: bool = False
    gives_strips: bool = False
    passed: list[Any] = field(default_factory=list)
    """The layers that its strips pass."""


def choose(
    model: Any, wanted: Mapping[str, Mode] | None, smallest: int, parts: int
) -> list[Choice]:
    """Return what to cut into `parts` parts, in the order of the model.

    That is what is wanted, by the names of layers; or all dense layers with at least `smallest` weights: two
    that follow each other by columns and then by rows, others so that less travels. Raises UsageError if
    there is nothing, or if what is wanted cannot be done.
    """
    graph = _Graph(model)
    modes = (
        _found(graph, smallest, parts) if wanted is None else _wanted(graph.dense, wanted, parts)
    )
    found = {layer: Choice(layer, modes[layer]) for layer in graph.dense if layer in modes}
    for layer, mode in modes.items():
        if mode == "column":
            after, passed = graph.next_dense(layer)
            if modes.get(after) == "row":
                found[layer].gives_strips = found[after].takes_strips = True
                found[layer].passed = passed
    return list(found.values())


def _found(graph: _Graph, smallest: int, parts: int) -> dict[Any, Mode]:
    modes: dict[Any, Mode] = {}

    def fits(layer: Any, mode: Mode) -> bool:
        # Whether a layer is large does not depend on what is cut already.
        return (
            layer in graph.dense
            and layer not in modes
            and unfit(layer, mode, parts) is None
            and int(np.prod(layer._kernel.shape)) >= smallest
        )

    for layer in graph.dense:
        after, _ = graph.next_dense(layer)
        if fits(layer, "column") and fits(after, "row"):
            modes[layer], modes[after] = "column", "row"
            continue
        fan_in, fan_out = layer._kernel.shape
        order: list[Mode] = ["row", "column"] if fan_out <= fan_in else ["column", "row"]
        for mode in order:
            if fits(layer, mode):
                modes[layer] = mode
    if not modes:
        raise UsageError(
            f"split() found no Dense layer with at least {smallest} weights that it can cut: give "
            "smallest=, or layers={name: 'column' or 'row'}"
        )
    return modes


def unfit(layer: Any, mode: Mode, parts: int) -> str | None:
    """Return why a Dense layer cannot be cut so; None if it can."""
    own = type(layer)
    if own.call is not keras.layers.Dense.call or own.build is not keras.layers.Dense.build:
        return f"its class {own.__name__} computes by itself"
    if layer.lora_enabled or layer.quantization_mode is not None:
        return "it is quantized, or has LoRA weights"
    axis = 1 if mode == "column" else 0
    if layer._kernel.shape[axis] < parts:
        return f"its weights are {tuple(layer._kernel.shape)}, for {parts} processes"
    pairs = [(layer.kernel_regularizer, layer.kernel_constraint, 2)]
    if mode == "column":
        pairs.append((layer.bias_regularizer, layer.bias_constraint, 1))
    for regularizer, constraint, rank in pairs:
        if regularizer is not None and type(regularizer) not in _SUMS:
            return f"{type(regularizer).__name__} is no sum over weights"
        whole = (
            rank == 2 and type(constraint) in _NORMS and constraint.axis in (1 - axis, [1 - axis])
        )
        if not (constraint is None or whole or type(constraint) is keras.constraints.NonNeg):
            return f"{type(constraint).__name__} needs weights of several processes"
    return None


def _wanted(dense: Iterable[Any], wanted: Mapping[str, Mode], parts: int) -> dict[Any, Mode]:
    by_name = {layer.name: layer for layer in dense}
    modes: dict[Any, Mode] = {}
    for name, mode in wanted.items():
        if name not in by_name:
            raise UsageError(
                f"layers={{{name!r}: ...}}: the model has no Dense layer of this name, but "
                + (", ".join(by_name) or "none")
            )
        if mode not in ("column", "row"):
            raise UsageError(f"layers={{{name!r}: {mode!r}}}: give 'column' or 'row'")
        reason = unfit(by_name[name], mode, parts)
        if reason is not None:
            raise UsageError(f"{name} cannot be cut by {mode}: {reason}")
        modes[by_name[name]] = mode
    return modes


class _Graph:
    """The layers of a model, and of models in it, that use the results of others."""

    def __init__(self, model: Any) -> None:
        self.dense: dict[Any, None] = {}  # in their order
        self._consumers: dict[Any, list[Any]] = {}
        self._uses: Counter[Any] = Counter()
        self._add(model)

    def _add(self, model: Any) -> None:
        functional = model._functional if isinstance(model, keras.Sequential) else model
        if functional is None or not hasattr(functional, "_nodes_by_depth"):
            raise UsageError(
                f"{model.name} is no Sequential or functional model that is built: split() has to know what "
                "follows what"
            )
        for nodes in functional._nodes_by_depth.values():
            for node in nodes:
                self._uses[node.operation] += 1
                for tensor in node.input_tensors:
                    self._use(tensor, node.operation)
        for tensor in functional.outputs:
            self._use(tensor, None)
        for each in functional.operations:
            if isinstance(each, keras.layers.Dense):
                self.dense[each] = None
            elif isinstance(each, keras.Model):
                self._add(each)

    def _use(self, tensor: Any, consumer: Any) -> None:
        self._consumers.setdefault(tensor._keras_history.operation, []).append(consumer)

    def next_dense(self, layer: Any) -> tuple[Any, list[Any]]:
        """Return the Dense layer that strips of `layer` could reach, or None, and the layers in between."""
        passed: list[Any] = []
        at = layer
        while _elementwise(at) and self._uses[at] == 1 and len(self._consumers[at]) == 1:
            (at,) = self._consumers[at]
            if isinstance(at, keras.layers.Dense):
                # One that is used twice may take something else the other time.
                return (at if self._uses[at] == 1 else None), passed
            passed.append(at)
        return None, passed


def _elementwise(layer: Any) -> bool:
    """Return whether a layer treats each value of its result by itself."""
    if getattr(layer, "activity_regularizer", None) is not None:
        return False
    if isinstance(layer, (keras.layers.Dense, keras.layers.Activation)):
        return layer.activation in _ELEMENTWISE
    return type(layer) in _PASSING and getattr(layer, "noise_shape", None) is None
