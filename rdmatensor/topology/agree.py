# SPDX-License-Identifier: Apache-2.0
"""Gives a group the trees of a topology: rank 0 plans, and all members get the same."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import UsageError
from ..group import Group, Tree
from .model import Topology, load
from .pack import KINDS, plan


def use(
    group: Group,
    topology: Topology | str | Path,
    kinds: Sequence[str] = KINDS,
    roots: Sequence[int] | None = None,
    timeout: float | None = None,
) -> list[Tree]:
    """Plans trees for the group at rank 0, and returns them after Group.use_trees at every member.

    Every member calls it; only rank 0's topology counts, which may be a file or the name of a recorded one.
    `kinds` and `roots` are those of plan(); `timeout`, in seconds, is that of each operation. Raises
    UsageError at every member if the topology does not fit the group, and what Group.use_trees raises.
    """
    planned: dict[str, Any] = {}
    error: Exception | None = None
    if group.rank == 0:
        try:
            planned = _planned(group.size, topology, kinds, roots)
        except Exception as problem:  # the others must learn of it, whatever it is
            error, planned = problem, {"error": f"rank 0 has no trees: {problem}"}
    told = json.loads(_from_first(group, json.dumps(planned).encode(), timeout))
    if error is not None:
        raise error
    if "error" in told:
        raise UsageError(told["error"])
    trees = [Tree(kind, root, rate, tuple(parents)) for kind, root, rate, parents in told["trees"]]
    group.use_trees(trees, told["pair_ns"], timeout)
    return trees


def _planned(
    size: int, topology: Topology | str | Path, kinds: Sequence[str], roots: Sequence[int] | None
) -> dict[str, Any]:
    if not isinstance(topology, Topology):
        topology = load(topology)
    if topology.size != size:
        raise UsageError(
            f"topology {topology.name!r} has {topology.size} members, the group {size}"
        )
    found = plan(topology, kinds, roots)
    return {"trees": found.trees, "pair_ns": found.pair_ns}


def from_all(group: Group, value: Any, timeout: float | None = None) -> list[Any]:
    """Returns each member's value, of JSON, by rank. Every member calls it."""
    text = json.dumps(value).encode()
    lengths = group.all_gather(np.array([len(text)], np.int64), algorithm="flat", timeout=timeout)
    padded = np.frombuffer(text.ljust(int(lengths.max())), np.uint8)
    texts = group.all_gather(padded, timeout=timeout).reshape(group.size, -1)
    return [json.loads(each.tobytes()) for each in texts]


def _from_first(group: Group, text: bytes, timeout: float | None) -> bytes:
    """Returns rank 0's text at every member."""
    length = group.broadcast(np.array([len(text)], np.int64), algorithm="flat", timeout=timeout)
    content = np.zeros(int(length[0]), np.uint8)
    if group.rank == 0:
        content[:] = np.frombuffer(text, np.uint8)
    return group.broadcast(content, algorithm="flat", timeout=timeout).tobytes()
