# SPDX-License-Identifier: Apache-2.0
"""Read GraphDefs: references, types of inputs and outputs, sinks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from ..model.errors import AnalysisError

# In TensorFlow's enum a reference type is its plain type plus this.
_REF_OFFSET = 100
RESOURCE = 20


@dataclass
class Program:
    """A graph to analyse, and what runs of it in a step. Passes change `graph` in place."""

    graph: Any
    """A GraphDef."""
    default: str
    """The device for nodes that name none."""
    fetches: list[str] = field(default_factory=list)
    """Tensors ("x:0") that the client of a session fetches."""
    targets: list[str] = field(default_factory=list)
    """Operations that must run."""
    feeds: list[str] = field(default_factory=list)
    """Tensors that the client of a session feeds."""
    args: set[str] = field(default_factory=set)
    """Placeholders that are a function's arguments."""
    ops: dict[str, str] = field(default_factory=dict)
    """The ops of nodes at run time, where they differ from the ops in `graph`."""
    dealt: list[str] = field(default_factory=list)
    """The variables that a strategy placed, in the order in which it deals them out."""
    fed: dict[str, str] = field(default_factory=dict)
    """The tensor ("x:0") that the client feeds through a node, by the node's name."""

    def op(self, node: Any) -> str:
        """Return the node's op at run time."""
        return "_Arg" if node.name in self.args else self.ops.get(node.name, node.op)


def base_type(dtype: int) -> int:
    """Return the plain type behind a reference type. Other types are returned as they are."""
    return dtype - _REF_OFFSET if dtype > _REF_OFFSET else dtype


def element_bytes(dtype: int) -> int:
    """Return the bytes of an element of a type; 0 if elements are not plain bytes."""
    import tensorflow as tf

    known = tf.dtypes.as_dtype(base_type(dtype))
    return 0 if known.name in ("string", "resource", "variant") else int(known.size)


def is_ref(dtype: int) -> bool:
    """Return whether this is a reference type."""
    return dtype > _REF_OFFSET


def reference(text: str) -> tuple[str, int]:
    """Return the node and the output that an input names: ("x", 1) for "x:1"; -1 for control inputs."""
    if text.startswith("^"):
        return text[1:], -1
    name, colon, output = text.rpartition(":")
    return (name, int(output)) if colon and output.isdigit() else (text, 0)


def data_inputs(node: Any) -> Iterator[tuple[str, int]]:
    """Yield the node's data inputs, in order."""
    for text in node.input:
        name, output = reference(text)
        if output < 0:
            return
        yield name, output


class Signatures:
    """Types of inputs and outputs, and statefulness, from the op registry or the graph's library."""

    def __init__(self, graph: Any) -> None:
        from tensorflow.python.framework import op_def_registry

        self._registry = op_def_registry
        self._functions = {f.signature.name: f.signature for f in graph.library.function}
        self._known: dict[str, Any] = {}

    def of(self, node: Any) -> Any:
        """Return the node's OpDef. Raises AnalysisError for an op that this TensorFlow does not know."""
        if node.op not in self._known:
            found = self._functions.get(node.op) or self._registry.get(node.op)
            if found is None:
                raise AnalysisError(
                    f"node {node.name!r}: this TensorFlow has no op {node.op!r}: load the library "
                    "that defines it first (tf.load_op_library)"
                )
            self._known[node.op] = found
        return self._known[node.op]

    def stateful(self, node: Any) -> bool:
        """Return whether the node's op has state."""
        return bool(self.of(node).is_stateful)

    def inputs(self, node: Any) -> list[int]:
        """Return the data types of the node's inputs, as TensorFlow's numbers."""
        return _types(node, self.of(node).input_arg)

    def outputs(self, node: Any) -> list[int]:
        """Return the data types of the node's outputs."""
        return _types(node, self.of(node).output_arg)


def _types(node: Any, args: Iterable[Any]) -> list[int]:
    types: list[int] = []
    for arg in args:
        if arg.type_list_attr:
            found = list(node.attr[arg.type_list_attr].list.type)
        else:
            dtype = arg.type or node.attr[arg.type_attr].type
            count = node.attr[arg.number_attr].i if arg.number_attr else 1
            found = [dtype] * count
        types += [dtype + _REF_OFFSET for dtype in found] if arg.is_ref else found
    return types


def check(graph: Any) -> None:
    """Raise AnalysisError if a name occurs twice, or if an input names no node."""
    names = {node.name for node in graph.node}
    if len(names) < len(graph.node):
        raise AnalysisError("two nodes of the graph have the same name")
    for node in graph.node:
        for text in node.input:
            if reference(text)[0] not in names:
                raise AnalysisError(f"node {node.name!r} takes {text!r}, which is not in the graph")


def sinks(graph: Any) -> list[str]:
    """Return the nodes whose outputs no node uses."""
    used = {reference(text)[0] for node in graph.node for text in node.input}
    return [node.name for node in graph.node if node.name not in used]


def keep(graph: Any, roots: Iterable[str]) -> None:
    """Remove every node that `roots` do not need. Raises AnalysisError for a root that does not exist."""
    nodes = {node.name: node for node in graph.node}
    stack, needed = list(roots), set()
    while stack:
        name = stack.pop()
        if name in needed:
            continue
        if name not in nodes:
            raise AnalysisError(f"the graph has no node {name!r}")
        needed.add(name)
        stack += [reference(text)[0] for text in nodes[name].input]
    kept = [node for node in graph.node if node.name in needed]
    if len(kept) < len(graph.node):
        library, versions = graph.library, graph.versions
        pruned = type(graph)(node=kept, library=library, versions=versions)
        graph.CopyFrom(pruned)
