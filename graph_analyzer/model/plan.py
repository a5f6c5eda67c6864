# SPDX-License-Identifier: Apache-2.0
"""A transfer plan: what travels in one step of a graph, how, and where it lies at the receiver.

Plans are values: equal if their contents are, the same for the same graph, and the same as JSON. They
come from `analyze`, from a running server (`live`), or from a file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rdmatensor.plan import Options

from ..read.shapes import Shape
from .errors import AnalysisError

VERSION = 1
CLASSES = ("static", "bounded", "dynamic", "rpc")
# Reason of an edge that no server plans.
ADDED = "TensorFlow adds it when it cuts the graph up"
# TensorFlow's C++ has other names for these.
_DTYPES = {"float": "float32", "double": "float64", "half": "float16"}
_OPTIONS = ("slots", "loop_slots", "batch", "fuse_bytes", "fuse_group_bytes")


@dataclass(frozen=True)
class Edge:
    """One tensor that travels from task to task."""

    name: str
    """Producer's output, "dense/kernel/Read:0", or the fed tensor; "...@device:CPU:1" when that is where
    it goes."""
    source: str
    destination: str
    dtype: str
    shape: Shape
    in_loop: bool
    plan_class: str
    """static | bounded | dynamic | rpc."""
    reason: str
    """Why it is not static; "" when it is."""
    bytes: int
    """Size, or its bound; 0 when it is not known. Inside a loop: of one iteration."""
    slots: int
    ring: int | None
    group: int | None
    offset: int | None
    """Of its first place in the link's memory at the receiver."""
    stride: int | None
    """From place to place."""
    first: int
    """Rounds of transfers that come before it can be made."""
    last: int | None
    """Rounds after which all its consumers have run; None: not known."""
    consumers: tuple[str, ...] = ()
    variable: str = ""
    """The variable that it is a copy of; "" when it is none, and in plans of servers."""
    graph: str = ""
    """Of a server's plan: the graph that the edge belongs to; a server may run several."""

    @property
    def key(self) -> tuple[str, str, str]:
        """What tells it from all others, and how edges are sorted."""
        return self.source, self.destination, self.name

    @property
    def size_known(self) -> bool:
        return self.shape is not None and None not in self.shape and self.plan_class != "rpc"


@dataclass(frozen=True)
class Link:
    """All that travels from one task to another. `bytes` is the memory its receiver registers."""

    source: str
    destination: str
    bytes: int
    rings: int
    groups: int
    hash: str


@dataclass(frozen=True)
class TransferPlan:
    """A plan of one graph over some tasks. Edges are sorted by `Edge.key`."""

    tasks: tuple[str, ...]
    options: Options
    links: tuple[Link, ...]
    edges: tuple[Edge, ...]
    control_edges: int = 0
    """Dependencies between tasks without a tensor; not planned."""

    @property
    def step_bytes(self) -> int:
        """Bytes that travel in a step, as far as sizes are known; loops count once."""
        return sum(edge.bytes for edge in self.edges)

    @property
    def arena_bytes(self) -> int:
        """Memory that all receivers register for places."""
        return sum(link.bytes for link in self.links)

    @property
    def unknown(self) -> int:
        """Edges whose size is not known at all."""
        return sum(not edge.size_known and not edge.bytes for edge in self.edges)

    def bytes_by_class(self) -> dict[str, int]:
        """Bytes per step of each class."""
        totals = dict.fromkeys(CLASSES, 0)
        for edge in self.edges:
            totals[edge.plan_class] += edge.bytes
        return totals

    @property
    def static_share(self) -> float:
        """Part of the known bytes that is static; 1 when nothing travels."""
        return self.bytes_by_class()["static"] / self.step_bytes if self.step_bytes else 1.0

    def bytes_by_link(self) -> dict[tuple[str, str], int]:
        """Bytes per step of each pair (source, destination)."""
        totals: dict[tuple[str, str], int] = {}
        for edge in self.edges:
            pair = edge.source, edge.destination
            totals[pair] = totals.get(pair, 0) + edge.bytes
        return totals

    def traffic(self) -> dict[str, tuple[int, int]]:
        """Bytes per step that each task sends and receives."""
        totals = dict.fromkeys(self.tasks, (0, 0))
        for (source, destination), count in self.bytes_by_link().items():
            sent, received = totals[source]
            totals[source] = sent + count, received
            sent, received = totals[destination]
            totals[destination] = sent, received + count
        return totals

    @property
    def graphs(self) -> tuple[str, ...]:
        """The graphs of a server's plan; ("",) of a plan made beforehand, () without edges."""
        return tuple(sorted({edge.graph for edge in self.edges}))

    def only(
        self, *, graph: str | None = None, destinations: Iterable[str] | None = None
    ) -> TransferPlan:
        """The plan with edges of one graph, or into some tasks. Links into these tasks stay as they are."""
        tasks = set(self.tasks if destinations is None else destinations)
        edges = (edge for edge in self.edges if graph is None or edge.graph == graph)
        return replace(
            self,
            edges=tuple(edge for edge in edges if edge.destination in tasks),
            links=tuple(link for link in self.links if link.destination in tasks),
        )

    def to_json(self) -> str:
        """The plan as text that `from_json` reads; equal plans give equal texts."""
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
            "links": [asdict(link) for link in self.links],
            "edges": edges,
        }
        return json.dumps(document, indent=1) + "\n"

    def save(self, path: Path | str) -> None:
        """Writes `to_json()` to a file."""
        Path(path).write_text(self.to_json())

    def to_html(self, path: Path | str) -> None:
        """Writes one page that needs nothing else: a link matrix, the arenas, all edges."""
        from ..report.html import page

        Path(path).write_text(page(self))

    @classmethod
    def from_json(cls, text: str | bytes) -> TransferPlan:
        """Reads what `to_json` wrote, or what a server told. AnalysisError when it is something else."""
        try:
            document = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise AnalysisError(f"not a transfer plan: no JSON: {error}") from None
        version = document.get("version") if isinstance(document, dict) else None
        if version != VERSION:
            raise AnalysisError(
                f"not a transfer plan of version {VERSION} (version: {version!r}); write it with the "
                "same version of rdmatensor as reads it"
            )
        try:
            return _read(document)
        except (KeyError, TypeError, ValueError) as error:
            raise AnalysisError(f"damaged transfer plan: {error!r}") from error


# More bytes than there are; and numbers that floating point still takes.
_LIMIT = 1 << 63


def join(plans: Sequence[TransferPlan]) -> TransferPlan:
    """One plan of what several servers told: each knows what it receives."""
    edges = [edge for plan in plans for edge in plan.edges]
    return TransferPlan(
        tasks=tuple(sorted({task for plan in plans for task in plan.tasks})),
        options=plans[0].options,
        links=tuple(link for plan in plans for link in plan.links),
        edges=tuple(sorted(edges, key=lambda edge: (*edge.key, edge.graph))),
        control_edges=sum(plan.control_edges for plan in plans),
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
    return TransferPlan(tasks, options, links, edges, control_edges)


def _typed(row: Mapping[str, Any], **types: type) -> dict[str, Any]:
    """The named fields of `row`, each of its type; whole numbers are counts or bytes."""
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
        raise ValueError(f"{row['name']} has a part of a place")
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
        graph=str(row.get("graph", "")),
    )


def _number(value: Any) -> int | None:
    if value is None or (type(value) is int and 0 <= value < _LIMIT):
        return value
    raise TypeError(f"{value!r} is no whole number from 0 to {_LIMIT - 1}")


@dataclass(frozen=True)
class Difference:
    """How plan `b` differs from plan `a`."""

    removed: tuple[Edge, ...]
    added: tuple[Edge, ...]
    changed: tuple[tuple[Edge, Edge], ...]

    def __bool__(self) -> bool:
        return bool(self.removed or self.added or self.changed)


# What an edge is, and how it travels. Not where it lies: one edge more moves all behind it.
_COMPARED = ("dtype", "shape", "in_loop", "plan_class", "bytes")


def closest(
    expected: TransferPlan, told: TransferPlan, compared: Iterable[str] = _COMPARED
) -> Difference:
    """How the graph of `told` that is most like `expected` differs from it, in what `told`'s servers
    receive and plan. AnalysisError when they have planned nothing yet."""
    if not told.edges:
        raise AnalysisError("nothing is planned there yet: run a step, then ask again")
    here = expected.only(destinations={edge.destination for edge in told.edges})
    here = replace(here, edges=tuple(edge for edge in here.edges if edge.reason != ADDED))
    fields = tuple(compared)
    found = [diff(here, told.only(graph=graph), fields) for graph in told.graphs]
    return min(found, key=lambda one: len(one.removed) + len(one.added) + len(one.changed))


# TensorFlow numbers the nodes that it makes of loops and conditionals, in an order of its own.
_NUMBERED = re.compile(r"/_(\d+)(?=[/:])")


def diff(a: TransferPlan, b: TransferPlan, compared: Iterable[str] = _COMPARED) -> Difference:
    """Compares edge by edge, by source, destination and name; `compared` names fields of Edge. Of plans of
    several graphs choose one first (`only`).

    Names that differ only in TensorFlow's numbers of made nodes count as equal, in the order of these.
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
    """Takes out of both lists what differs in numbers only, and returns it in pairs."""
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
