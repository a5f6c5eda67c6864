# SPDX-License-Identifier: Apache-2.0
"""Evaluate the numbers on which loops depend: constants, sizes, and what is computed from them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import numpy as np

from ..read.graphs import data_inputs
from ..read.ops import ENTER, EXIT, MERGE, NEXT_ITERATION, SWITCH
from ..read.shapes import Shapes


class _Maybe:
    """A condition of which only a part is known, and that part is true."""


MAYBE: Final = _Maybe()
# None: not known.
Value = Any
Tensor = tuple[str, int]

# Larger tensors are not counters.
_MOST_ELEMENTS = 1024
_DEEPEST = 200
_PASS = (
    frozenset(
        ["Identity", "LoopCond", "StopGradient", "PreventGradient", "Snapshot", "EnsureShape"]
    )
    | ENTER
    | NEXT_ITERATION
    | SWITCH
)
_NUMPY: dict[str, Callable[..., Any]] = {
    "Add": np.add, "AddV2": np.add, "Sub": np.subtract, "Mul": np.multiply, "Neg": np.negative,
    "FloorDiv": np.floor_divide, "FloorMod": np.mod, "RealDiv": np.divide, "Minimum": np.minimum,
    "Maximum": np.maximum, "Less": np.less, "LessEqual": np.less_equal, "Greater": np.greater,
    "GreaterEqual": np.greater_equal, "Equal": np.equal, "NotEqual": np.not_equal,
    "LogicalOr": np.logical_or, "LogicalNot": np.logical_not, "Ceil": np.ceil, "Floor": np.floor,
    "Abs": np.abs, "SelectV2": np.where,
    "Pack": lambda *parts: np.stack(parts), "Range": np.arange,
    "Reshape": lambda x, shape: np.reshape(x, tuple(shape)),
    "GatherV2": lambda x, index, axis: np.take(x, index, int(axis)),
    "ConcatV2": lambda *parts: np.concatenate(parts[:-1], int(parts[-1])),
    "ExpandDims": lambda x, axis: np.expand_dims(x, int(axis)), "Squeeze": np.squeeze,
}  # fmt: skip
_REDUCE: dict[str, Callable[..., Any]] = {
    "Prod": np.prod, "Sum": np.sum, "Max": np.max, "Min": np.min, "All": np.all, "Any": np.any,
}  # fmt: skip


class Values:
    """The values of a graph's tensors. Operations that are not in the tables above have no known value."""

    def __init__(
        self, nodes: Mapping[str, Any], shapes: Shapes, leave: Callable[[str], Value]
    ) -> None:
        """Ask `leave` for the value of an Exit."""
        self._nodes, self._shapes, self._leave = nodes, shapes, leave
        self._constants: dict[Tensor, Value] = {}

    def needed(self, tensor: Tensor, ends: Mapping[str, tuple[Tensor, Tensor]]) -> list[str]:
        """Return the loop variables among `ends` on which `tensor` depends, also in later iterations."""
        found: dict[str, None] = {}
        seen, stack = {tensor[0]}, [tensor[0]]
        while stack:
            name = stack.pop()
            inputs: Iterable[Tensor] = (
                () if self._nodes[name].op in ENTER else data_inputs(self._nodes[name])
            )
            if name in ends:
                found[name] = None
                inputs = [ends[name][1]]
            for source, _ in inputs:
                if source not in seen:
                    seen.add(source)
                    stack.append(source)
        return list(found)

    def of(self, tensor: Tensor, current: Mapping[str, Value]) -> Value:
        """Return the value of a tensor while loop variables have the values `current`."""
        return self._of(tensor, current, {}, 0)

    def _of(
        self, tensor: Tensor, current: Mapping[str, Value], known: dict[Tensor, Value], depth: int
    ) -> Value:
        if tensor[0] in current and tensor[1] == 0:
            return current[tensor[0]]
        if tensor in self._constants:
            return self._constants[tensor]
        if tensor not in known:
            known[tensor] = None
            if depth < _DEEPEST:
                known[tensor] = self._evaluate(
                    tensor, lambda other: self._of(other, current, known, depth + 1)
                )
        return known[tensor]

    def _evaluate(self, tensor: Tensor, value: Callable[[Tensor], Value]) -> Value:
        node = self._nodes[tensor[0]]
        inputs = list(data_inputs(node))
        if node.op in _PASS:
            return value(inputs[0])
        if node.op in EXIT:
            return self._leave(node.name)
        if node.op in MERGE:
            return None
        if node.op == "LogicalAnd":
            return _both(*(value(each) for each in inputs))
        if node.op in ("Const", "Shape", "Size", "Rank"):
            self._constants[tensor] = found = self._constant(node, inputs)
            return found
        if node.op not in _NUMPY and node.op not in _REDUCE and node.op not in _WITH_ATTRIBUTES:
            return None
        values = [value(each) for each in inputs]
        if any(each is None or each is MAYBE for each in values):
            return None
        if node.op != "StridedSlice" and any(each.dtype == object for each in values):
            return None
        try:
            found = _compute(node, values)
        except (ArithmeticError, IndexError, TypeError, ValueError):
            return None
        return found if found.size <= _MOST_ELEMENTS else None

    def _constant(self, node: Any, inputs: list[Tensor]) -> Value:
        from tensorflow.python.framework import tensor_util

        if node.op == "Const":
            sizes = [dim.size for dim in node.attr["value"].tensor.tensor_shape.dim]
            small = int(np.prod(sizes)) <= _MOST_ELEMENTS
            return tensor_util.MakeNdarray(node.attr["value"].tensor) if small else None
        shape = self._shapes.of(*inputs[0])
        if node.op == "Rank":
            return None if shape is None else np.array(len(shape))
        if shape is None or (None in shape and node.op == "Size"):
            return None
        if node.op == "Size":
            return np.array(int(np.prod([size or 0 for size in shape])))
        # Of a shape of which sizes are not known, the others may be taken.
        return np.array(shape, object if None in shape else np.int64)


def _both(first: Value, second: Value) -> Value:
    """Return `first and second`, of which one may be unknown."""
    known = [part for part in (first, second) if part is not None and part is not MAYBE]
    if not all(np.all(part) for part in known):
        return np.array(False)
    if len(known) == 2:
        return np.array(True)
    return None if first is None and second is None else MAYBE


def _cast(node: Any, x: Any) -> Any:
    import tensorflow as tf

    return x.astype(tf.dtypes.as_dtype(node.attr["DstT"].type).as_numpy_dtype)


def _strided_slice(node: Any, x: Any, begin: Any, end: Any, strides: Any) -> Any:
    if node.attr["ellipsis_mask"].i or node.attr["new_axis_mask"].i:
        raise ValueError("not needed for sizes")
    index: list[Any] = []
    for axis, (first, last, stride) in enumerate(zip(begin, end, strides, strict=True)):

        def masked(name: str, bit: int = 1 << axis) -> bool:
            return bool(node.attr[name].i & bit)

        if masked("shrink_axis_mask"):
            index.append(int(first))
        else:
            start = None if masked("begin_mask") else int(first)
            stop = None if masked("end_mask") else int(last)
            index.append(slice(start, stop, int(stride)))
    return x[tuple(index)]


_WITH_ATTRIBUTES: dict[str, Callable[..., Any]] = {"Cast": _cast, "StridedSlice": _strided_slice}


def _compute(node: Any, values: list[Any]) -> Any:
    if node.op in _WITH_ATTRIBUTES:
        found = _WITH_ATTRIBUTES[node.op](node, *values)
    elif node.op in _REDUCE:
        axis = tuple(int(each) for each in np.ravel(values[1]))
        found = _REDUCE[node.op](values[0], axis=axis, keepdims=node.attr["keep_dims"].b)
    else:
        found = _NUMPY[node.op](*values)
    found = np.asarray(found)
    if found.dtype == object:
        known = None not in found.ravel().tolist()
        return found.astype(np.int64) if known else found
    return found
