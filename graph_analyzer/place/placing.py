# SPDX-License-Identifier: Apache-2.0
"""Give every node its device by the rules of TensorFlow's placer for machines with CPUs.

* Nodes that share a resource or a reference, or name each other in `_class`, share a device: the one
  of the node that makes the resource, or else the first one that is named.
* Shape, Size and Rank follow their input. A node without inputs follows its consumers if they share a device
  and its own device string allows that device.
* Every other node goes to the device that it names, completed by the default device.
"""

from __future__ import annotations

from typing import Any

from ..read.devices import Device, parse, whole
from ..read.graphs import RESOURCE, Program, Signatures, base_type, data_inputs, is_ref
from ..read.ops import CALLS, CONTROL_FLOW

_METADATA = frozenset(["Shape", "Size", "Rank"])
_COLOCATED = b"loc:@"


class _Groups:
    """Union-find over node names."""

    def __init__(self) -> None:
        self._parent: dict[str, str] = {}

    def find(self, name: str) -> str:
        root = name
        while (parent := self._parent.get(root, root)) != root:
            root = parent
        while name != root:
            self._parent[name], name = root, self._parent.get(name, root)
        return root

    def join(self, first: str, second: str) -> None:
        """Join two groups. The root of `first` stays."""
        self._parent[self.find(second)] = self.find(first)


def _shares(dtype: int) -> bool:
    return is_ref(dtype) or base_type(dtype) == RESOURCE


def _group(graph: Any, signatures: Signatures) -> tuple[_Groups, set[str]]:
    """Return the groups of nodes that share a device, and the nodes that own what is shared."""
    groups, owners = _Groups(), set()
    names = {node.name for node in graph.node}
    for node in graph.node:
        takes = False
        if node.op not in CALLS | CONTROL_FLOW:
            for (source, _), dtype in zip(data_inputs(node), signatures.inputs(node), strict=False):
                if _shares(dtype):
                    groups.join(source, node.name)
                    takes = True
        if not takes and any(_shares(dtype) for dtype in signatures.outputs(node)):
            owners.add(node.name)
        for text in node.attr["_class"].list.s if "_class" in node.attr else ():
            other = text.removeprefix(_COLOCATED).decode(errors="replace")
            if text.startswith(_COLOCATED) and other in names:
                groups.join(other, node.name)
    return groups, owners


def place(program: Program) -> None:
    """Write a whole device into every node of the program's graph."""
    graph, default = program.graph, whole(program.default, Device("localhost"))
    signatures = Signatures(graph)
    groups, owners = _group(graph, signatures)
    asked: dict[str, tuple[bool, str]] = {}
    sizes: dict[str, int] = {}
    for node in graph.node:
        root = groups.find(node.name)
        sizes[root] = sizes.get(root, 0) + 1
        if node.device:
            claim = (node.name in owners, node.device)
            if root not in asked or (claim[0] and not asked[root][0]):
                asked[root] = claim
    devices = {
        node.name: whole(asked.get(groups.find(node.name), (False, ""))[1], default)
        for node in graph.node
    }
    alone = {node.name for node in graph.node if sizes[groups.find(node.name)] == 1}
    _follow_neighbours(graph, signatures, devices, alone)
    for node in graph.node:
        node.device = str(devices[node.name])


def _follow_neighbours(
    graph: Any, signatures: Signatures, devices: dict[str, Device], alone: set[str]
) -> None:
    consumers: dict[str, set[Device]] = {}

    def follow(node: Any, where: set[Device]) -> None:
        if len(where) == 1 and parse(node.device).admits(device := next(iter(where))):
            devices[node.name] = device

    for node in graph.node:
        if node.op in _METADATA and node.name in alone:
            source = next(data_inputs(node), None)
            follow(node, {devices[source[0]]} if source else set())
    generators = set()
    for node in graph.node:
        if node.name in alone and not node.input:
            outputs = signatures.outputs(node)
            if len(outputs) == 1 and not is_ref(outputs[0]):
                generators.add(node.name)
    for node in graph.node:
        for text in node.input:
            name = text.removeprefix("^").partition(":")[0]
            if name in generators:
                consumers.setdefault(name, set()).add(devices[node.name])
    for node in graph.node:
        if node.name in consumers:
            follow(node, consumers[node.name])
