# SPDX-License-Identifier: Apache-2.0
"""A topology: members of a group, switches, the links between them, and its JSON format."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import units
from ..errors import UsageError

FORMAT = "rdmatensor-topology"
VERSION = 1
RECORDED = Path(__file__).parent / "recorded"
_MOST_NODES = 4096

Matrix = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Member:
    """A member of a group. Its rank is its place in Topology.members.

    `host` is equal for members that share memory. `details` has facts that no algorithm needs, such as the
    NUMA node ("numa"), the PCI address ("pci") and the network port ("port").
    """

    name: str
    host: str = ""
    details: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Link:
    """One direction of a link, with its bandwidth in bytes per second and its latency in seconds."""

    source: str
    target: str
    bandwidth: float
    latency: float = 0.0


@dataclass(frozen=True)
class Topology:
    """Members, switches and directed links. Raises UsageError, which names what does not fit together.

    A switch forwards, and does nothing else. What pairs share, such as a network card, is a switch between
    them.
    """

    name: str
    members: tuple[Member, ...]
    links: tuple[Link, ...]
    switches: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        names = [each.name for each in self.members] + list(self.switches)
        if not self.members:
            raise UsageError(f"topology {self.name!r} has no members")
        if len(names) > _MOST_NODES:
            raise UsageError(f"topology {self.name!r} has more than {_MOST_NODES} nodes")
        twice = {name for name in names if names.count(name) > 1}
        if twice:
            raise UsageError(f"topology {self.name!r}: two nodes are called {min(twice)!r}")
        for link in self.links:
            for end in (link.source, link.target):
                if end not in self.index:
                    raise UsageError(
                        f"topology {self.name!r}: a link names {end!r}, which is no node"
                    )
            if link.source == link.target:
                raise UsageError(f"topology {self.name!r}: a link goes from {end!r} to itself")
            if not 0 < link.bandwidth < float("inf") or not 0 <= link.latency < float("inf"):
                raise UsageError(
                    f"topology {self.name!r}: the link from {link.source!r} to {link.target!r} needs a "
                    "finite bandwidth above 0 and a finite latency"
                )

    @property
    def size(self) -> int:
        """The number of members."""
        return len(self.members)

    @cached_property
    def index(self) -> dict[str, int]:
        """The number of each node by its name: members by rank, then switches."""
        names = [*(each.name for each in self.members), *self.switches]
        return {name: number for number, name in enumerate(names)}

    @cached_property
    def capacity(self) -> Matrix:
        """Bytes per second from each node to each other; parallel links add up."""
        matrix = np.zeros((len(self.index), len(self.index)))
        for link in self.links:
            matrix[self.index[link.source], self.index[link.target]] += link.bandwidth
        return matrix

    @property
    def connected(self) -> bool:
        """Whether links lead from each member to every other one, also through other members."""
        for matrix in (self.capacity, self.capacity.T):
            reached = np.zeros(len(matrix), bool)
            reached[0] = True
            edge = reached.copy()
            while edge.any():
                edge = (matrix[edge] > 0).any(axis=0) & ~reached
                reached |= edge
            if not reached[: self.size].all():
                return False
        return True

    def reversed(self) -> Topology:
        """Return the topology with every link turned round."""
        links = (
            Link(each.target, each.source, each.bandwidth, each.latency) for each in self.links
        )
        return Topology(self.name, self.members, tuple(links), self.switches)

    def only(self, ranks: Iterable[int]) -> Topology:
        """Return the topology of some members, in this order, with the links among them and switches."""
        members = tuple(self.members[rank] for rank in ranks)
        kept = {*(each.name for each in members), *self.switches}
        links = tuple(each for each in self.links if each.source in kept and each.target in kept)
        return Topology(self.name, members, links, self.switches)

    def to_json(self) -> dict[str, Any]:
        """Return what parse() reads."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "name": self.name,
            "members": [
                {"name": each.name, **({"host": each.host} if each.host else {}), **each.details}
                for each in self.members
            ],
            "switches": list(self.switches),
            "links": _paired(self.links),
        }

    def save(self, path: str | Path) -> None:
        """Write a JSON file."""
        document = self.to_json()
        rows = {key: document.pop(key) for key in ("members", "links")}
        lines = [f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in document.items()]
        for key, value in rows.items():
            body = ",\n".join(f"    {json.dumps(each)}" for each in value)
            lines.append(f"  {json.dumps(key)}: [\n{body}\n  ]")
        Path(path).write_text("{\n" + ",\n".join(lines) + "\n}\n")


def _paired(links: Iterable[Link]) -> list[dict[str, Any]]:
    """Write two equal directions as one link with "duplex"."""
    waiting: dict[Link, int] = {}
    rows: list[dict[str, Any]] = []
    for link in links:
        back = Link(link.target, link.source, link.bandwidth, link.latency)
        if waiting.get(back):
            waiting[back] -= 1
            rows.append(_row(back, True))
        else:
            waiting[link] = waiting.get(link, 0) + 1
    return rows + [_row(link, False) for link, count in waiting.items() for _ in range(count)]


def _row(link: Link, duplex: bool) -> dict[str, Any]:
    row: dict[str, Any] = {"from": link.source, "to": link.target, "bandwidth": link.bandwidth}
    if link.latency:
        row["latency"] = link.latency
    return row if duplex else {**row, "duplex": False}


def load(source: str | Path) -> Topology:
    """Read a JSON file, or one of the topologies in `recorded_names()` by its name.

    Raises UsageError if the file cannot be read or is no topology: the text names the entry.
    """
    path = Path(source)
    if str(source) in recorded_names():
        path = RECORDED / f"{source}.json"
    try:
        document = json.loads(path.read_text())
    except OSError as error:
        raise UsageError(
            f"topology {str(source)!r}: {error.strerror}; recorded ones are {', '.join(recorded_names())}"
        ) from None
    except ValueError as error:
        raise UsageError(f"topology {str(source)!r} is no JSON: {error}") from None
    return parse(document, str(source))


def recorded_names() -> list[str]:
    """Return the names of the topologies that come with the package."""
    return sorted(path.stem for path in RECORDED.glob("*.json"))


def parse(document: Any, where: str = "topology") -> Topology:
    """Build a topology from its JSON document. Raises UsageError, which names the wrong entry and `where`."""
    try:
        return _parse(document)
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from None


def _parse(document: Any) -> Topology:
    top = _object(
        document, "the document", {"format", "version", "name", "members", "switches", "links"}
    )
    if top.get("format") != FORMAT or top.get("version") != VERSION:
        raise UsageError(f'expected "format": "{FORMAT}" and "version": {VERSION}')
    members = [_member(each, f"members[{i}]") for i, each in enumerate(_list(top, "members"))]
    links = [
        link for i, each in enumerate(_list(top, "links")) for link in _links(each, f"links[{i}]")
    ]
    switches = [
        _text(each, f"switches[{i}]")
        for i, each in enumerate(_list(top, "switches", optional=True))
    ]
    name = _text(top.get("name", "unnamed"), "name")
    return Topology(name, tuple(members), tuple(links), tuple(switches))


def _member(value: Any, where: str) -> Member:
    row = dict(_object(value, where))
    name, host = _text(row.pop("name", None), f"{where}.name"), row.pop("host", "")
    details = {key: _text(text, f"{where}.{key}") for key, text in row.items()}
    return Member(name, host and _text(host, f"{where}.host"), details)


def _links(value: Any, where: str) -> list[Link]:
    row = _object(value, where, {"from", "to", "bandwidth", "latency", "duplex"})
    ends = [_text(row.get(key), f"{where}.{key}") for key in ("from", "to")]
    bandwidth = _amount(row.get("bandwidth"), f"{where}.bandwidth", units.bandwidth)
    latency = _amount(row.get("latency", 0.0), f"{where}.latency", units.latency)
    duplex = row.get("duplex", True)
    if not isinstance(duplex, bool):
        raise UsageError(f"{where}.duplex is {duplex!r}: give true or false")
    there = Link(ends[0], ends[1], bandwidth, latency)
    return [there, Link(ends[1], ends[0], bandwidth, latency)] if duplex else [there]


def _object(value: Any, where: str, keys: set[str] | None = None) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise UsageError(f"{where} is no JSON object")
    unknown = sorted(set(value) - keys) if keys else []
    if unknown:
        raise UsageError(f"{where} has the unknown key {unknown[0]!r}")
    return value


def _list(top: dict[str, Any], key: str, optional: bool = False) -> list[Any]:
    value = top.get(key, [] if optional else None)
    if not isinstance(value, list):
        raise UsageError(f"{key} is missing, or no list")
    return value


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str) or not value:
        raise UsageError(f"{where} is {value!r}: give a text")
    return value


def _amount(value: Any, where: str, read: Any) -> float:
    """Read a number in bytes or seconds, or a text with a unit."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    try:
        return float(read(_text(value, where)))
    except UsageError:
        raise UsageError(
            f'{where} is {value!r}: give a number, or a text such as "25GB" or "2us"'
        ) from None
    except ValueError as error:
        raise UsageError(f"{where}: {error}") from None
