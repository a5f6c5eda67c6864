# SPDX-License-Identifier: Apache-2.0
"""A transfer plan: what travels in one step of a graph, how, and where it lies at the receiver.

Plans are values: two plans with the same contents are equal, and the same graph always gives the same plan
and the same JSON. A plan comes from `analyze`, from a running server (`live`), or from a file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rdmatensor import config
from rdmatensor.plan import Options

from .errors import AnalysisError

Shape = tuple[int | None, ...] | None
"""None: the rank is unknown. A dimension that is None is unknown."""

VERSION = 1
CLASSES = ("static", "bounded", "dynamic", "rpc")
PATHS = ("static", "bounded", "inline", "dynamic", "rpc")
# The reason of an edge that no server plans.
ADDED = "TensorFlow adds it when it cuts the graph up"
# TensorFlow's C++ code calls these types by other names.
_DTYPES = {"float": "float32", "double": "float64", "half": "float16"}
_OPTIONS = ("slots", "loop_slots", "batch", "fuse_bytes", "fuse_group_bytes")


@dataclass(frozen=True)
class Edge:
    """One tensor that travels from task to task."""

    name: str
    """The producer's output, "dense/kernel/Read:0", or the fed tensor. Ends in "@device:CPU:1" if it goes to
    that device instead of the first CPU."""
    source: str
    destination: str
    dtype: str
    shape: Shape
    in_loop: bool
    plan_class: str
    """static | bounded | dynamic | rpc."""
    reason: str
    """Why it is not static; "" if it is."""
    bytes: int
    """Its size or a bound of it, each time that it is sent; 0 if neither is known."""
    slots: int
    ring: int | None
    group: int | None
    offset: int | None
    """Where its first place begins in the link's memory at the receiver."""
    stride: int | None
    """The distance from one place to the next."""
    first: int
    """The number of rounds of transfers before it can be made."""
    last: int | None
    """The number of rounds after which all its consumers have run; None if it is not known."""
    consumers: tuple[str, ...] = ()
    variable: str = ""
    """The variable that it is a copy of; "" if it is none. Plans of servers do not have it."""
    operation: int | None = None
    """The number of the operation that sends it together with others; None: its own."""
    alone: str = ""
    """Why it has operations of its own; "" if it shares them."""
    iterations: int | None = None
    """How often it is sent in a step, if it is in a loop; None if that is not known. Plans of servers do not
    have it."""
    paced: bool = False
    """Whether its sender waits, in each iteration of a loop, for what the receiver makes of it."""
    updates: tuple[str, ...] = ()
    """The variables that its consumers change."""
    rows: int | None = None
    """If its consumers only take rows of a table: the bytes of these rows and of their numbers."""
    graph: str = ""
    """The graph to which the edge belongs, in the plan of a server, which may run several; "" otherwise."""

    @property
    def key(self) -> tuple[str, str, str]:
        """Identifies the edge in its graph. Edges are sorted by it."""
        return self.source, self.destination, self.name

    @property
    def sends(self) -> int:
        """How often it is sent in a step; once if that is not known."""
        return (self.iterations or 1) if self.in_loop else 1

    @property
    def step_bytes(self) -> int:
        """The bytes that it adds to a step."""
        return self.bytes * self.sends

    @property
    def placed_sends(self) -> int:
        """How many of its sends in a step find a free place for certain.

        In a loop, a sender that needs nothing of the receiver runs ahead of it until all places are taken.
        """
        if self.plan_class not in ("static", "bounded"):
            return 0
        return self.sends if self.paced or not self.in_loop else min(self.sends, self.slots)

    def paths(self) -> dict[str, int]:
        """Return the bytes that it adds to a step, by the path on which they certainly travel (PATHS).

        What finds no place travels inside the message ("inline") if it is small, and is fetched otherwise.
        """
        placed = self.placed_sends
        small = 0 < self.bytes <= config.get_int("INLINE_BYTES")
        rest = "rpc" if self.plan_class == "rpc" else "inline" if small else "dynamic"
        found = {self.plan_class: placed * self.bytes} if placed else {}
        if placed < self.sends:
            found[rest] = (self.sends - placed) * self.bytes
        return found

    @property
    def size_known(self) -> bool:
        """Whether all dimensions are known and the bytes can be placed."""
        return self.shape is not None and None not in self.shape and self.plan_class != "rpc"


def by_path(edges: Iterable[Edge]) -> dict[str, int]:
    """Return the bytes per step that these edges put on each path (Edge.paths)."""
    totals = dict.fromkeys(PATHS, 0)
    for edge in edges:
        for path, count in edge.paths().items():
            totals[path] += count
    return totals


@dataclass(frozen=True)
class Variable:
    """A variable of the graph and its task. `bytes` is 0 if its size is not known."""

    name: str
    task: str
    bytes: int


@dataclass(frozen=True)
class Link:
    """Everything that travels from one task to another. `bytes` is the memory that the receiver registers."""

    source: str
    destination: str
    bytes: int
    rings: int
    groups: int
    hash: str


@dataclass(frozen=True)
class TransferPlan:
    """The plan of the transfers among some tasks. Edges are sorted by `Edge.key`."""

    tasks: tuple[str, ...]
    options: Options
    links: tuple[Link, ...]
    edges: tuple[Edge, ...]
    control_edges: int = 0
    """The number of dependencies between tasks that carry no tensor and are not planned."""
    variables: tuple[Variable, ...] = ()
    """In the order in which they are dealt out. Plans of servers do not have them; see `held`."""

    @property
    def held(self) -> tuple[Variable, ...]:
        """The variables; those that travel if the plan does not have all."""
        if self.variables:
            return self.variables
        found = {}
        for edge in self.edges:
            if edge.variable and edge.variable not in found:
                found[edge.variable] = Variable(edge.variable, edge.source, edge.bytes)
        return tuple(found.values())

    @property
    def step_bytes(self) -> int:
        """The bytes that travel in a step, as far as sizes are known.

        What is sent in a loop counts as often as it is sent, or once if that is not known.
        """
        return sum(edge.step_bytes for edge in self.edges)

    @property
    def arena_bytes(self) -> int:
        """The memory that all receivers register for places."""
        return sum(link.bytes for link in self.links)

    @property
    def unknown(self) -> int:
        """The number of edges for which neither a size nor a bound is known."""
        return sum(not edge.size_known and not edge.bytes for edge in self.edges)

    def operations(self) -> tuple[int, int]:
        """Return how many tensors share operations, and how many operations send them."""
        shared = [(edge.graph, edge.operation) for edge in self.edges if edge.operation is not None]
        return len(shared), len(set(shared))

    def bytes_by_class(self) -> dict[str, int]:
        """Return the bytes per step of each class."""
        totals = dict.fromkeys(CLASSES, 0)
        for edge in self.edges:
            totals[edge.plan_class] += edge.step_bytes
        return totals

    def bytes_by_path(self) -> dict[str, int]:
        """Return the bytes per step on each path, with as few on static ones as may happen (Edge.paths)."""
        return by_path(self.edges)

    @property
    def static_share(self) -> float:
        """The part of the known bytes that is certain to find a place of known size.

        0 if nothing travels, or if no size is known.
        """
        return self.bytes_by_path()["static"] / self.step_bytes if self.step_bytes else 0.0

    @property
    def uncounted(self) -> int:
        """The number of edges in loops of which it is not known how often they run."""
        return sum(edge.in_loop and edge.iterations is None for edge in self.edges)

    def bytes_by_link(self) -> dict[tuple[str, str], int]:
        """Return the bytes per step of each pair (source, destination)."""
        totals: dict[tuple[str, str], int] = {}
        for edge in self.edges:
            pair = edge.source, edge.destination
            totals[pair] = totals.get(pair, 0) + edge.step_bytes
        return totals

    def traffic(self) -> dict[str, tuple[int, int]]:
        """Return the bytes per step that each task sends and receives."""
        totals = dict.fromkeys(self.tasks, (0, 0))
        for (source, destination), count in self.bytes_by_link().items():
            sent, received = totals[source]
            totals[source] = sent + count, received
            sent, received = totals[destination]
            totals[destination] = sent, received + count
        return totals

    def memory(self) -> dict[str, int]:
        """Return the bytes that each task registers for places."""
        totals = dict.fromkeys(self.tasks, 0)
        for link in self.links:
            totals[link.destination] += link.bytes
        return totals

    @property
    def graphs(self) -> tuple[str, ...]:
        """The graphs in a server's plan. A plan by `analyze` has one, "", or none if it has no edges."""
        return tuple(sorted({edge.graph for edge in self.edges}))

    def only(
        self, *, graph: str | None = None, destinations: Iterable[str] | None = None
    ) -> TransferPlan:
        """Return the plan with the edges of one graph only, or with the edges and links into some tasks
        only.
        """
        tasks = set(self.tasks if destinations is None else destinations)
        edges = (edge for edge in self.edges if graph is None or edge.graph == graph)
        return replace(
            self,
            edges=tuple(edge for edge in edges if edge.destination in tasks),
            links=tuple(link for link in self.links if link.destination in tasks),
        )

    def to_json(self) -> str:
        """Return the plan as text that `from_json` reads. Equal plans give equal texts."""
        edges = []
        for edge in self.edges:
            row = asdict(edge)
            row["class"] = row.pop("plan_class")
            edges.append(row)
        document = {
            "version": VERSION,
            "tasks": self.tasks,
            "options": {name: getattr(self.options, name) for name in _OPTIONS},
            "control_edges": self.control_edges,
            "variables": [asdict(variable) for variable in self.variables],
            "links": [asdict(link) for link in self.links],
            "edges": edges,
        }
        return json.dumps(document, indent=1) + "\n"

    def save(self, path: Path | str) -> None:
        """Write `to_json()` to a file."""
        Path(path).write_text(self.to_json())

    @classmethod
    def from_json(cls, text: str | bytes) -> TransferPlan:
        """Read what `to_json` wrote or what a server sent. Raises AnalysisError for anything else."""
        try:
            document = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise AnalysisError(f"not a transfer plan, because it is not JSON: {error}") from None
        version = document.get("version") if isinstance(document, dict) else None
        if version != VERSION:
            raise AnalysisError(
                f"not a transfer plan of version {VERSION} (version: {version!r}): write and read it with "
                "the same version of rdmatensor"
            )
        try:
            return _read(document)
        except (KeyError, TypeError, ValueError) as error:
            raise AnalysisError(f"damaged transfer plan: {error!r}") from error


# Above every size of a real machine, and still within the range of a float.
_LIMIT = 1 << 63


def join(plans: Sequence[TransferPlan]) -> TransferPlan:
    """Join the plans of several servers, each of which knows what it receives."""
    edges = [edge for plan in plans for edge in plan.edges]
    return TransferPlan(
        tasks=tuple(sorted({task for plan in plans for task in plan.tasks})),
        options=plans[0].options,
        links=tuple(link for plan in plans for link in plan.links),
        edges=tuple(sorted(edges, key=lambda edge: (*edge.key, edge.graph))),
        control_edges=sum(plan.control_edges for plan in plans),
        variables=tuple(dict.fromkeys(each for plan in plans for each in plan.variables)),
    )


def _read(document: Mapping[str, Any]) -> TransferPlan:
    tasks = tuple(str(task) for task in document["tasks"])
    edges = tuple(
        sorted((_read_edge(row) for row in document["edges"]), key=lambda e: (*e.key, e.graph))
    )
    links = tuple(
        Link(**_typed(row, source=str, destination=str, bytes=int, rings=int, groups=int, hash=str))
        for row in document["links"]
    )
    ends = [end for edge in edges for end in edge.key[:2]]
    ends += [end for link in links for end in (link.source, link.destination)]
    if unknown := set(ends) - set(tasks):
        raise ValueError(f"not among the tasks: {min(unknown)}")
    linked = {(link.source, link.destination) for link in links}
    for edge in edges:
        if edge.offset is not None and (edge.source, edge.destination) not in linked:
            raise ValueError(f"{edge.name} has a place, but no link from {edge.source}")
    options = Options(**_typed(document["options"], **dict.fromkeys(_OPTIONS, int)))
    control_edges = _typed({"control_edges": 0, **document}, control_edges=int)["control_edges"]
    variables = tuple(
        Variable(**_typed(row, name=str, task=str, bytes=int))
        for row in document.get("variables", ())
    )
    if unknown := {variable.task for variable in variables} - set(tasks):
        raise ValueError(f"not among the tasks: {min(unknown)}")
    return TransferPlan(tasks, options, links, edges, control_edges, variables)


def _typed(row: Mapping[str, Any], **types: type) -> dict[str, Any]:
    """Return the named fields of `row`, each of which must have its type; numbers must not be negative."""
    for name, kind in types.items():
        if type(row[name]) is not kind:
            raise TypeError(f"{name} is {row[name]!r}, not of type {kind.__name__}")
        if kind is int and not 0 <= row[name] < _LIMIT:
            raise ValueError(f"{name} is {row[name]}")
    return {name: row[name] for name in types}


def _read_edge(row: Mapping[str, Any]) -> Edge:
    row = {**row, "dtype": _DTYPES.get(row["dtype"], row["dtype"])}
    plain = _typed(
        row, name=str, source=str, destination=str, dtype=str, in_loop=bool, reason=str,
        bytes=int, slots=int, first=int,
    )  # fmt: skip
    if row["class"] not in CLASSES:
        raise ValueError(f"class {row['class']!r}")
    shape = row["shape"]
    if len({row["ring"] is None, row["offset"] is None, row["stride"] is None}) > 1:
        raise ValueError(f"{row['name']} has only a part of a place")
    return Edge(
        **plain,
        ring=_number(row["ring"]),
        group=_number(row["group"]),
        offset=_number(row["offset"]),
        stride=_number(row["stride"]),
        last=_number(row["last"]),
        plan_class=row["class"],
        shape=None if shape is None else tuple(_number(size) for size in shape),
        consumers=tuple(str(name) for name in row.get("consumers", ())),
        variable=str(row.get("variable", "")),
        operation=_number(row.get("operation")),
        alone=str(row.get("alone", "")),
        iterations=_number(row.get("iterations")),
        paced=row.get("paced") is True,
        updates=tuple(str(name) for name in row.get("updates", ())),
        rows=_number(row.get("rows")),
        graph=str(row.get("graph", "")),
    )


def _number(value: Any) -> int | None:
    if value is None or (type(value) is int and 0 <= value < _LIMIT):
        return value
    raise TypeError(f"{value!r} is not a whole number from 0 to {_LIMIT - 1}")


@dataclass(frozen=True)
class Difference:
    """How plan `b` differs from plan `a`."""

    removed: tuple[Edge, ...]
    added: tuple[Edge, ...]
    changed: tuple[tuple[Edge, Edge], ...]

    def __bool__(self) -> bool:
        return bool(self.removed or self.added or self.changed)


# What an edge is and how it travels, but not where it lies: each additional edge moves those behind it.
_COMPARED = ("dtype", "shape", "in_loop", "plan_class", "bytes")


def closest(
    expected: TransferPlan, told: TransferPlan, compared: Iterable[str] = _COMPARED
) -> Difference:
    """Compare `expected` with the graph of `told` that is most like it.

    Only tensors that the servers of `told` receive and plan are compared. Raises AnalysisError if they have
    planned nothing yet.
    """
    if not told.edges:
        raise AnalysisError("the servers have planned nothing yet: run a step, then try again")
    here = expected.only(destinations={edge.destination for edge in told.edges})
    here = replace(here, edges=tuple(edge for edge in here.edges if edge.reason != ADDED))
    fields = tuple(compared)
    found = [diff(here, told.only(graph=graph), fields) for graph in told.graphs]
    return min(found, key=lambda one: len(one.removed) + len(one.added) + len(one.changed))


# TensorFlow numbers the nodes into which it turns loops and conditionals, in an order of its own.
_NUMBERED = re.compile(r"/_(\d+)(?=[/:])")


def diff(a: TransferPlan, b: TransferPlan, compared: Iterable[str] = _COMPARED) -> Difference:
    """Compare edges of the same source, destination and name in the fields of Edge that `compared` names.

    Names that differ only in the numbers that TensorFlow gives to nodes of its own count as equal, in the
    order of these numbers. If a plan has several graphs, choose one first (`only`).
    """
    before = {edge.key: edge for edge in a.edges}
    after = {edge.key: edge for edge in b.edges}
    removed = [edge for key, edge in before.items() if key not in after]
    added = [edge for key, edge in after.items() if key not in before]
    pairs = [(edge, after[key]) for key, edge in before.items() if key in after]
    pairs += _renumbered(removed, added)
    fields = tuple(compared)
    return Difference(
        tuple(removed),
        tuple(added),
        tuple(
            (old, new)
            for old, new in pairs
            if any(getattr(old, name) != getattr(new, name) for name in fields)
        ),
    )


def _renumbered(removed: list[Edge], added: list[Edge]) -> list[tuple[Edge, Edge]]:
    """Move edges whose names differ only in such numbers from both lists into pairs, and return these."""
    candidates: dict[tuple[str, str, str], list[Edge]] = {}
    for edge in sorted(added, key=_numbers):
        candidates.setdefault(_unnumbered(edge), []).append(edge)
    pairs = [
        (edge, same.pop(0))
        for edge in sorted(removed, key=_numbers)
        if (same := candidates.get(_unnumbered(edge)))
    ]
    taken = {id(edge) for pair in pairs for edge in pair}
    removed[:] = [edge for edge in removed if id(edge) not in taken]
    added[:] = [edge for edge in added if id(edge) not in taken]
    return pairs


def _numbers(edge: Edge) -> tuple[int, ...]:
    return tuple(int(number) for number in _NUMBERED.findall(edge.name))


def _unnumbered(edge: Edge) -> tuple[str, str, str]:
    return edge.source, edge.destination, _NUMBERED.sub("/_", edge.name)
