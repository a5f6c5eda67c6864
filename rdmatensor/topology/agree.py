# SPDX-License-Identifier: Apache-2.0
"""Give a group the trees of a topology: rank 0 plans, and all members get the same."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .._api.collective import Kind, Tree
from ..errors import UsageError
from ..group import Group
from .model import Topology, load, parse
from .pack import KINDS, plan


def use(
    group: Group,
    topology: Topology | str | Path,
    kinds: Sequence[Kind] = KINDS,
    roots: Sequence[int] | None = None,
    timeout: float | None = None,
) -> list[Tree]:
    """Plan trees for the group at rank 0, and return them after Group.use_trees at every member.

    Every member calls it. Only rank 0's topology counts, which may be a file or the name of a recorded one.
    `kinds` and `roots` are those of plan(); `timeout`, in seconds, is that of each operation. Raises
    UsageError at every member if the topology does not fit the group, and what Group.use_trees raises.
    """
    told = _told(group, lambda: _planned(group.size, topology, kinds, roots), "trees", timeout)
    trees = [Tree(kind, root, rate, tuple(parents)) for kind, root, rate, parents in told["trees"]]
    group.use_trees(trees, told["pair_ns"], timeout)
    return trees


def share(group: Group, topology: Topology | str | Path, timeout: float | None = None) -> Topology:
    """Return rank 0's topology at every member. It may be a file there, or the name of a recorded one.

    Every member calls it. Raises UsageError at every member if rank 0 cannot read it.
    """
    return parse(_told(group, lambda: _loaded(topology).to_json(), "topology", timeout))


def _told(
    group: Group, make: Callable[[], dict[str, Any]], what: str, timeout: float | None
) -> dict[str, Any]:
    """Return what rank 0 makes at every member, or raise UsageError there."""
    made: dict[str, Any] = {}
    error: Exception | None = None
    if group.rank == 0:
        try:
            made = make()
        except Exception as problem:  # the others must learn of it, whatever it is
            error, made = problem, {"error": f"rank 0 has no {what}: {problem}"}
    told: dict[str, Any] = json.loads(_from_first(group, json.dumps(made).encode(), timeout))
    if error is not None:
        raise error
    if "error" in told:
        raise UsageError(told["error"])
    return told


def _loaded(topology: Topology | str | Path) -> Topology:
    return topology if isinstance(topology, Topology) else load(topology)


# The last question, and the answer: groups of the same members, one after the other, have the same trees.
_latest: tuple[Any, dict[str, Any]] = (None, {})


def _planned(
    size: int, topology: Topology | str | Path, kinds: Sequence[Kind], roots: Sequence[int] | None
) -> dict[str, Any]:
    global _latest
    topology = _loaded(topology)
    if topology.size != size:
        raise UsageError(
            f"topology {topology.name!r} has {topology.size} members, the group {size}"
        )
    question = topology, tuple(kinds), None if roots is None else tuple(roots)
    if _latest[0] != question:
        found = plan(topology, kinds, roots)
        _latest = question, {"trees": found.trees, "pair_ns": found.pair_ns}
    return _latest[1]


def from_all(group: Group, value: Any, timeout: float | None = None) -> list[Any]:
    """Return each member's value, of JSON, by rank. Every member calls it."""
    text = json.dumps(value).encode()
    lengths = group.all_gather(np.array([len(text)], np.int64), algorithm="flat", timeout=timeout)
    padded = np.frombuffer(text.ljust(int(lengths.max())), np.uint8)
    texts = group.all_gather(padded, timeout=timeout).reshape(group.size, -1)
    return [json.loads(each.tobytes()) for each in texts]


def _from_first(group: Group, text: bytes, timeout: float | None) -> bytes:
    """Return rank 0's text at every member."""
    length = group.broadcast(np.array([len(text)], np.int64), algorithm="flat", timeout=timeout)
    content = np.zeros(int(length[0]), np.uint8)
    if group.rank == 0:
        content[:] = np.frombuffer(text, np.uint8)
    return group.broadcast(content, algorithm="flat", timeout=timeout).tobytes()
