# SPDX-License-Identifier: Apache-2.0
"""Find the tensors that travel between the tasks of a placed graph."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from ..model.plan import Shape
from ..read.devices import Device, parse
from ..read.graphs import Program, Signatures, data_inputs, element_bytes, reference
from ..read.ops import ENTER, MERGE, NEXT_ITERATION, SWITCH, blocks, branches, free
from ..read.shapes import Shapes
from .loops import Loops, after, loop_frames


@dataclass(frozen=True)
class Node:
    """A node as the planner sees it. `task` is an index into the tasks."""

    task: int
    loop: bool
    blocks: bool
    free: bool
    merges: bool
    branches: bool


@dataclass(frozen=True)
class Transfer:
    """A tensor that travels. TensorFlow sends an output once to each device that uses it."""

    name: str
    source: int
    destination: int
    dtype: str
    dtype_number: int
    element_size: int
    """In bytes; 0 if elements are not plain bytes."""
    shape: Shape
    in_loop: bool
    iterations: int | None
    """How often it is sent in a step; None if the graph does not tell."""
    paced: bool
    """Whether its sender waits, in each iteration of a loop, for what the receiver makes of it."""
    device_memory: bool
    """Whether it leaves or enters memory other than the host's."""
    devices: tuple[str, str]
    """Where it comes from and goes to, on the tasks: "device:CPU:0"."""
    producer: int
    consumers: tuple[int, ...]
    origin: str
    """The node that makes the shape unknown, such as "placeholder x"; "" if the shape is known."""
    variable: str
    """The variable that it is a copy of; "" if it is none."""
    updates: tuple[str, ...]
    """The variables that its consumers change."""
    rows: int | None
    """The bytes of the rows that its consumers take, and of their numbers; None if they use all of it."""
    added: bool
    """Whether TensorFlow adds it while it cuts the graph up, too late for a plan."""


@dataclass(frozen=True)
class Transfers:
    """What travels in one step, and the graph that decides in which order.

    Other fields refer to `nodes` and `tasks` by index.
    """

    tasks: tuple[str, ...]
    node_names: tuple[str, ...]
    nodes: tuple[Node, ...]
    arcs: tuple[tuple[int, int], ...]
    items: tuple[Transfer, ...]
    control_edges: int
    variables: tuple[tuple[str, int, int], ...] = ()
    """The name, the task and the bytes of each variable; 0 bytes if its size is not known."""


_VARIABLES = frozenset(["VarHandleOp", "VariableV2", "Variable"])
# Names of operations that change the variable which is their first input begin so.
_CHANGES = (
    "Assign",
    "Apply",
    "Scatter",
    "Sparse",
    "ResourceApply",
    "ResourceScatter",
    "ResourceSparse",
)
# Follow a tensor through so many operations at most to find what it changes.
_MOST_FOLLOWED = 100
_TAKES_ROWS = frozenset(["Gather", "GatherV2"])
_SAME = frozenset(["Cast", "Identity"])
_SIZES = frozenset(["Shape", "ShapeN", "Size", "Rank"])
# These ops pass on the variable, or its value, that is their first input.
_READS = frozenset(
    ["ReadVariableOp", "ResourceGather", "Identity", "RefIdentity", "Snapshot", *ENTER, *SWITCH]
)


def _variables(graph: Any) -> dict[str, str]:
    """Return the variable's name for each node that makes, passes on or reads a variable."""
    nodes = {node.name: node for node in graph.node}
    found: dict[str, str] = {}
    for node in graph.node:
        path = [node.name]
        while (last := nodes[path[-1]]).op in _READS and last.name not in found and last.input:
            path.append(reference(last.input[0])[0])
        end = nodes[path[-1]]
        name = found.get(end.name, "")
        if end.op in _VARIABLES:
            name = end.attr["shared_name"].s.decode(errors="replace") or end.name
        found.update(dict.fromkeys(path, name))
    return {name: variable for name, variable in found.items() if variable}


def find(program: Program, iterations: int | None = None) -> Transfers:
    """Read the transfers from the program's graph, in which every node names a whole device.

    `iterations` is how often loops run whose condition does not tell.
    """
    return _Reader(program).read(iterations)


class _Reader:
    """Tables that are needed while a graph is read. Nodes and tasks are numbers in them."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._nodes = list(program.graph.node)
        self._devices = [parse(node.device) for node in self._nodes]
        self._tasks = tuple(sorted({device.task_name for device in self._devices}))
        self._numbers = {name: number for number, name in enumerate(self._tasks)}
        self._frames = loop_frames(program.graph)
        self._conditions = {
            self._frames[node.name]: number
            for number, node in enumerate(self._nodes)
            if node.op == "LoopCond" and node.name in self._frames
        }
        self._variables = _variables(program.graph)
        self._users: dict[str, list[int]] = {}
        for number, node in enumerate(self._nodes):
            for source, _ in data_inputs(node):
                self._users.setdefault(source, []).append(number)

    def read(self, iterations: int | None) -> Transfers:
        arcs: list[tuple[int, int]] = []
        # By node, output and device. The inner dicts serve as sets with a fixed order.
        uses: dict[tuple[int, int, Device], dict[int, None]] = {}
        asked: dict[tuple[int, int, Device], dict[int, None]] = {}
        controls = set()
        for source, output, number in self._inputs():
            if self._nodes[source].op not in NEXT_ITERATION:
                arcs.append((source, number))
            device = self._devices[number]
            for condition in self._asks(source, number):
                asked.setdefault((condition, 0, device), {})[number] = None
            if self._devices[source].task_name == device.task_name:
                continue
            if output < 0:
                controls.add((source, device))
            else:
                uses.setdefault((source, output, device), {})[number] = None
        items = []
        if uses:
            shapes = Shapes(self._program.graph)
            loops = Loops(self._program.graph, self._frames, shapes, iterations)
            items = [
                self._transfer(shapes, loops, *key, tuple(takers), key not in uses)
                for key, takers in (asked | uses).items()
            ]
        items.sort(key=lambda item: (item.source, item.destination, item.name))
        names = tuple(node.name for node in self._nodes)
        nodes = tuple(self._describe())
        return Transfers(
            self._tasks, names, nodes, tuple(arcs), tuple(items), len(controls), self._held()
        )

    def _inputs(self) -> Iterator[tuple[int, int, int]]:
        """Yield the producer, output and consumer of every input; output -1 means a control input."""
        index = {node.name: number for number, node in enumerate(self._nodes)}
        for number, node in enumerate(self._nodes):
            for text in node.input:
                name, output = reference(text)
                yield index[name], output, number

    def _asks(self, source: int, number: int) -> Iterator[int]:
        """Yield the conditions of loops that the device of node `number` needs.

        If a tensor of `source` arrives there inside a loop, TensorFlow builds another loop around the input
        and sends it the condition.
        """
        producer, device = self._nodes[source], self._devices[number]
        inside = self._frames.get(producer.name, ())
        if not inside or self._devices[source] == device:
            return
        outputs = after(producer, inside)
        for depth in range(1, len(outputs) + 1):
            condition = self._conditions.get(outputs[:depth])
            if condition is not None and self._devices[condition].task_name != device.task_name:
                yield condition

    def _describe(self) -> Iterator[Node]:
        signatures = Signatures(self._program.graph)
        for node, device in zip(self._nodes, self._devices, strict=True):
            op = self._program.op(node)
            yield Node(
                task=self._numbers[device.task_name],
                loop=node.name in self._frames,
                blocks=blocks(op, signatures.stateful(node)),
                free=free(op),
                merges=op in MERGE,
                branches=branches(op),
            )

    def _transfer(
        self,
        shapes: Shapes,
        loops: Loops,
        producer: int,
        output: int,
        device: Device,
        consumers: tuple[int, ...],
        added: bool,
    ) -> Transfer:
        node, source = self._nodes[producer], self._devices[producer]
        shape = shapes.of(node.name, output)
        dtype, element_size = shapes.dtype(node.name, output)
        in_loop = bool(after(node, self._frames.get(node.name, ())))
        takers = [self._nodes[number].name for number in consumers]
        elsewhere = "" if device.local_name == "device:CPU:0" else "@" + device.local_name
        return Transfer(
            name=self._program.fed.get(node.name, f"{node.name}:{output}") + elsewhere,
            source=self._numbers[source.task_name],
            destination=self._numbers[device.task_name],
            dtype=dtype,
            dtype_number=shapes.number(node.name, output),
            element_size=element_size,
            shape=shape,
            in_loop=in_loop,
            iterations=loops.runs(node.name) if in_loop else 1,
            paced=not in_loop or loops.is_paced(node.name, takers),
            device_memory=not source.kind == device.kind == "CPU",
            devices=(source.local_name, device.local_name),
            producer=producer,
            consumers=consumers,
            origin="" if shape is not None and None not in shape else shapes.origin(node.name),
            variable=self._variables.get(node.name, ""),
            updates=self._updates(consumers),
            rows=self._rows(shapes, node.name, consumers),
            added=added,
        )

    def _held(self) -> tuple[tuple[str, int, int], ...]:
        found: dict[str, tuple[str, int, int]] = {}
        for node, device in zip(self._nodes, self._devices, strict=True):
            if node.op in _VARIABLES:
                sizes = [dim.size for dim in node.attr["shape"].shape.dim]
                known = not node.attr["shape"].shape.unknown_rank and min(sizes, default=0) >= 0
                elements = prod(sizes) if known else 0
                nbytes = elements * element_bytes(node.attr["dtype"].type)
                name = self._variables[node.name]
                found.setdefault(name, (name, self._numbers[device.task_name], nbytes))
        order = {name: number for number, name in enumerate(self._program.dealt)}
        return tuple(sorted(found.values(), key=lambda row: (order.get(row[0], len(order)), row)))

    def _updates(self, consumers: tuple[int, ...]) -> tuple[str, ...]:
        """Return the variables that `consumers`, or what follows them on their task, change."""
        found: dict[str, None] = {}
        queue, seen = list(consumers), set(consumers)
        while queue and len(seen) <= _MOST_FOLLOWED:
            number = queue.pop()
            node = self._nodes[number]
            takes = next((source for source, _ in data_inputs(node)), "")
            if takes in self._variables and node.op.startswith(_CHANGES):
                found[self._variables[takes]] = None
            for user in self._users.get(node.name, ()):
                if user not in seen and self._devices[user] == self._devices[number]:
                    seen.add(user)
                    queue.append(user)
        return tuple(sorted(found))

    def _rows(self, shapes: Shapes, name: str, consumers: tuple[int, ...]) -> int | None:
        """Return what would travel if `consumers`, which take rows, got these instead of the whole."""
        total, queue, seen = 0, list(consumers), set(consumers)
        while queue:
            number = queue.pop()
            node = self._nodes[number]
            if node.op in _SIZES:
                continue
            if node.op in _SAME:
                following = [n for n in self._users.get(node.name, ()) if n not in seen]
                seen.update(following)
                queue += following
                continue
            inputs = list(data_inputs(node))
            if node.op not in _TAKES_ROWS:
                return None
            for tensor in ((node.name, 0), inputs[1]):
                shape = shapes.of(*tensor)
                if shape is None or None in shape:
                    return None
                total += prod(size or 0 for size in shape) * shapes.dtype(*tensor)[1]
        return total


def with_tasks(transfers: Transfers, more: Iterable[str]) -> Transfers:
    """Add tasks that have nothing to do."""
    tasks = tuple(sorted({*transfers.tasks, *more}))
    moved = [tasks.index(name) for name in transfers.tasks]
    nodes = tuple(replace(node, task=moved[node.task]) for node in transfers.nodes)
    items = tuple(
        replace(item, source=moved[item.source], destination=moved[item.destination])
        for item in transfers.items
    )
    variables = tuple((name, moved[task], size) for name, task, size in transfers.variables)
    return replace(transfers, tasks=tasks, nodes=nodes, items=items, variables=variables)
