# SPDX-License-Identifier: Apache-2.0
"""Find the shapes of all tensors of a graph by TensorFlow's own shape functions.

A loop variable is assumed to keep the shape with which it enters. If inference shows that it does not, the
assumption is relaxed to what both shapes have in common, and inference is repeated.
"""

from __future__ import annotations

import re
from typing import Any

from ..model.errors import AnalysisError
from ..model.plan import Shape
from .graphs import reference
from .ops import ENTER, MERGE, NEXT_ITERATION

_RELAXED = "/_relaxed"
# Names of nodes that TensorFlow adds begin with an underscore, which cannot be imported.
_PREFIX = "importable"


class Shapes:
    """The shapes and types of a graph's tensors, and the origins of unknown dimensions."""

    def __init__(self, graph: Any) -> None:
        loops = _back_edges(graph)
        relaxed: dict[str, Shape] = {}
        while True:
            self._graph = _infer(graph, loops, relaxed)
            changed = False
            for merge, (forward, back) in loops.items():
                assumed = relaxed.get(merge, self.of(*forward))
                common = _common([assumed, *(self.of(*end) for end in (forward, *back))])
                if common != assumed:
                    relaxed[merge] = common
                    changed = True
            if not changed:
                return

    def of(self, node: str, output: int) -> Shape:
        """Return the shape of a node's output."""
        return _shape(self._tensor(node, output))

    def dtype(self, node: str, output: int) -> tuple[str, int]:
        """Return the name of the type and the bytes of an element; 0 if elements are not plain bytes."""
        dtype = self._tensor(node, output).dtype.base_dtype
        opaque = dtype.name in ("string", "resource", "variant")
        return str(dtype.name), 0 if opaque else int(dtype.size)

    def number(self, node: str, output: int) -> int:
        """Return TensorFlow's number for the type."""
        return int(self._tensor(node, output).dtype.base_dtype.as_datatype_enum)

    def origin(self, node: str) -> str:
        """Return the node that makes a size of `node`'s outputs unknown, such as "placeholder x"."""
        operation = self._graph.get_operation_by_name(_importable(node))
        seen = {operation.name}
        while True:
            ahead = [
                tensor.op
                for tensor in operation.inputs
                if not tensor.shape.is_fully_defined() and tensor.op.name not in seen
            ]
            if not ahead:
                break
            operation = ahead[0]
            seen.add(operation.name)
        name = operation.name.removesuffix(_RELAXED).removeprefix(_PREFIX)
        if operation.type.startswith("Placeholder") and not operation.name.endswith(_RELAXED):
            fed = re.fullmatch(r"_recv_(.+)_\d+", name)
            return f"placeholder {fed[1] if fed else name}"
        what = "loop variable" if operation.name.endswith(_RELAXED) else operation.type
        return f"{what} {name}"

    def _tensor(self, node: str, output: int) -> Any:
        return self._graph.get_operation_by_name(_importable(node)).outputs[output]


def _importable(reference_or_name: str) -> str:
    name = reference_or_name.removeprefix("^")
    if not name.startswith("_"):
        return reference_or_name
    return reference_or_name[: len(reference_or_name) - len(name)] + _PREFIX + name


def _shape(tensor: Any) -> Shape:
    shape = tensor.shape
    return None if shape.rank is None else tuple(shape.as_list())


def _common(shapes: list[Shape]) -> Shape:
    """Return what is known of a tensor that has one of these shapes."""
    first = shapes[0]
    if first is None or any(shape is None or len(shape) != len(first) for shape in shapes):
        return None
    columns = zip(*(shape for shape in shapes if shape is not None), strict=True)
    return tuple(dims[0] if len(set(dims)) == 1 else None for dims in columns)


_Tensor = tuple[str, int]
_Loops = dict[str, tuple[_Tensor, list[_Tensor]]]


def _back_edges(graph: Any) -> _Loops:
    """Map each merge of a loop variable to the tensors that enter and that come around."""
    next_iterations = {node.name for node in graph.node if node.op in NEXT_ITERATION}
    loops: _Loops = {}
    for node in graph.node:
        if node.op in MERGE:
            ends = [reference(text) for text in node.input if not text.startswith("^")]
            back = [end for end in ends if end[0] in next_iterations]
            forward = [end for end in ends if end[0] not in next_iterations]
            if back and forward:
                loops[node.name] = (forward[0], back)
    return loops


def _infer(graph: Any, loops: _Loops, relaxed: dict[str, Shape]) -> Any:
    """Import `graph` without its back edges into a tf.Graph."""
    import tensorflow as tf

    acyclic = type(graph)(library=graph.library, versions=graph.versions)
    for node in graph.node:
        copy = acyclic.node.add()
        copy.CopyFrom(node)
        # Placement does not matter here, and colocation groups may name nodes that were removed.
        copy.device = ""
        copy.attr.pop("_class", None)
        if node.op in ENTER:
            # Its shape function forgets the shape, because what comes around may have another one.
            copy.op = "Identity"
            for name in ("frame_name", "is_constant", "parallel_iterations"):
                copy.attr.pop(name, None)
        if node.name in loops:
            (source, output), _ = loops[node.name]
            entry = f"{source}:{output}"
            if node.name in relaxed:
                entry = node.name + _RELAXED
                acyclic.node.append(_placeholder(entry, node, relaxed[node.name], tf))
            controls = [text for text in node.input if text.startswith("^")]
            del copy.input[:]
            copy.input.extend([entry, *controls])
            copy.attr["N"].i = 1
    for node in acyclic.node:
        node.name = _importable(node.name)
        for index, text in enumerate(node.input):
            node.input[index] = _importable(text)
    result = tf.Graph()
    try:
        with result.as_default():
            tf.graph_util.import_graph_def(acyclic, name="")
    except (ValueError, tf.errors.OpError) as error:
        raise AnalysisError(f"TensorFlow does not accept this graph: {error}") from error
    return result


def _placeholder(name: str, merge: Any, shape: Shape, tf: Any) -> Any:
    node = tf.compat.v1.NodeDef(name=name, op="Placeholder")
    node.attr["dtype"].type = merge.attr["T"].type
    node.attr["shape"].shape.CopyFrom(tf.TensorShape(shape).as_proto())
    return node
