# SPDX-License-Identifier: Apache-2.0
"""Choose few spanning trees for an operation of a group, and the trees for all operations.

Blink (arXiv 1910.04940) showed that a few trees fill the links that a job was given.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from math import gcd
from typing import NamedTuple

import numpy as np
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import maximum_flow

from .._api.collective import Kind, Tree
from ..errors import UsageError
from .columns import Column, Problem
from .flow import all_gather_bound, broadcast_bound, reduce_scatter_bound
from .model import Matrix, Topology

SLACK = 0.05  # the share of the rate that fewer trees may cost
KINDS: tuple[Kind, ...] = ("all_reduce", "broadcast", "all_gather", "reduce_scatter")
_ONE_BY_ONE = 48  # trees that are left out one after the other
_PEEL = 8  # the most members, and twice the most trees, for which trees are peeled off


class Packing(NamedTuple):
    """Trees for one operation.

    `rate` is in bytes per second: of the data for all_reduce and broadcast, of each member's part for the
    other kinds. `best` is the rate with any number of trees, and `bound` what no trees exceed: from maximum
    flows, and for all_reduce from the prices of links.
    """

    kind: Kind
    rate: float
    best: float
    bound: float
    trees: tuple[Tree, ...]


@dataclass(frozen=True)
class Plan:
    """The trees for a group, as Group.use_trees takes them, and how long it took to find them."""

    topology: Topology
    packings: tuple[Packing, ...]
    seconds: float

    @property
    def trees(self) -> list[Tree]:
        """The trees of all operations."""
        return [tree for packing in self.packings for tree in packing.trees]

    @property
    def pair_ns(self) -> list[float]:
        """Nanoseconds per byte from each member to each other without a detour; 0 where no link leads."""
        size = self.topology.size
        widest = self.topology.capacity.copy()
        for switch in range(size, len(widest)):
            through = np.minimum(widest[:, switch, None], widest[None, switch, :])
            widest = np.maximum(widest, through)
        between = widest[:size, :size]
        np.fill_diagonal(between, 0.0)
        return (
            np.divide(1e9, between, out=np.zeros_like(between), where=between > 0).ravel().tolist()
        )


def plan(
    topology: Topology, kinds: Sequence[Kind] = KINDS, roots: Sequence[int] | None = None
) -> Plan:
    """Pack trees for these operations, broadcasts from these roots (None: each member).

    Raises UsageError if a member cannot be reached.
    """
    began = time.perf_counter()
    packings = []
    for kind in kinds:
        if kind == "broadcast":
            each_root = range(topology.size) if roots is None else roots
            packings += [pack(topology, kind, root) for root in each_root]
        else:
            packings.append(pack(topology, kind))
    return Plan(topology, tuple(packings), time.perf_counter() - began)


def pack(topology: Topology, kind: Kind, root: int = 0, slack: float = SLACK) -> Packing:
    """Pack few trees that reach (1 - slack) of the best rate for an operation. `root` is a broadcast's."""
    if kind not in KINDS:
        raise UsageError(f"there are no trees for {kind!r}: give one of {', '.join(KINDS)}")
    size = topology.size
    if not 0 <= root < size:
        raise UsageError(f"the root {root} is no member: there are {size}")
    roots = [root] if kind == "broadcast" else [0] if kind == "all_reduce" else list(range(size))
    if size == 1:
        return Packing(kind, np.inf, np.inf, np.inf, ())
    problem = Problem(
        topology.reversed() if kind == "reduce_scatter" else topology, roots, kind == "all_reduce"
    )
    known, best, proved = problem.solve()
    chosen, rate, rates = _fewest(problem, known, best * (1 - slack))
    bound = proved
    if kind == "broadcast":
        bound = broadcast_bound(topology, root)
        peeled = _peel(topology, root, bound) if len(chosen) > 2 else None
        if peeled is not None and len(peeled) <= len(chosen):
            chosen = [Column(0, parents, (), ()) for parents in peeled]
            rate, rates = sum(peeled.values()), np.array(list(peeled.values()))
    elif kind != "all_reduce":
        bound = (
            all_gather_bound(topology) if kind == "all_gather" else reduce_scatter_bound(topology)
        )
    trees = tuple(
        Tree(kind, _root_of(column.parents), max(int(each), 1), column.parents)
        for column, each in zip(chosen, rates, strict=True)
    )
    return Packing(kind, float(rate), best, bound, trees)


def _root_of(parents: Sequence[int]) -> int:
    return next(node for node, parent in enumerate(parents) if node == parent)


def _fewest(
    problem: Problem, known: list[Column], enough: float
) -> tuple[list[Column], float, np.ndarray]:
    """Return few of the trees that reach the rate `enough`, the rate, and each tree's."""

    def solve(columns: list[Column]) -> tuple[float, np.ndarray]:
        if len({each.owner for each in columns}) < len(problem.roots):
            return 0.0, np.zeros(len(columns))
        rate, rates, _, _ = problem.rates(columns)
        return rate * problem.scale, rates * problem.scale

    rate, rates = solve(known)
    order = np.argsort(-rates, kind="stable")
    columns = [known[i] for i in order if rates[i] > 1e-9 * rate]
    low, high = len(problem.roots), len(columns)
    while low < high:
        middle = (low + high) // 2
        if solve(columns[:middle])[0] >= enough:
            high = middle
        else:
            low = middle + 1
    columns = columns[:high]
    for column in columns[::-1] if high <= _ONE_BY_ONE else []:
        fewer = [each for each in columns if each is not column]
        if fewer and solve(fewer)[0] >= enough:
            columns = fewer
    rate, rates = solve(columns)
    kept = [i for i in range(len(columns)) if rates[i] > 1e-9 * rate]
    return [columns[i] for i in kept], rate, rates[kept]


def _peel(topology: Topology, root: int, bound: float) -> dict[tuple[int, ...], float] | None:
    """Take trees off links whose bandwidths are small multiples of one: never more trees than the bound has.

    Each tree grows by an edge that leaves enough for the others, as in Lovász's proof of Edmonds's theorem,
    and takes as much as that permits. Returns None for other topologies.
    """
    size = topology.size
    if topology.switches or size > _PEEL:
        return None
    whole = [round(each.bandwidth) for each in topology.links]
    unit = reduce(gcd, whole)
    need = round(bound / unit) if unit else 0
    if not 0 < need <= 2 * _PEEL:
        return None
    left: Matrix = np.rint(topology.capacity / unit)
    found: dict[tuple[int, ...], float] = {}
    while need > 0:
        parents, weight = _peel_one(left, root, need)
        for node, parent in enumerate(parents):
            if node != parent:
                left[parent, node] -= weight
        need -= weight
        found[parents] = found.get(parents, 0.0) + float(weight * unit)
    return found


def _peel_one(left: Matrix, root: int, need: int) -> tuple[tuple[int, ...], int]:
    size, weight = len(left), need
    parents = [root if node == root else -1 for node in range(size)]
    taken = np.zeros_like(left)
    while -1 in parents:
        inside = [node for node in range(size) if parents[node] >= 0]
        edges = [(u, v) for u in inside for v in range(size) if parents[v] < 0 and left[u, v] > 0]
        wanted = ((edge, each) for each in range(weight, 0, -1) for edge in edges)
        edge, weight = next(
            (edge, each)
            for edge, each in wanted
            if _leaves_enough(left, taken, edge, each, root, need)
        )
        parents[edge[1]] = edge[0]
        taken[edge] = 1.0
    return tuple(parents), weight


def _leaves_enough(
    left: Matrix, taken: Matrix, edge: tuple[int, int], weight: int, root: int, need: int
) -> bool:
    rest = left - weight * taken
    rest[edge] -= weight
    if rest.min() < 0:
        return False
    graph = csr_matrix(rest.astype(np.int32))
    return need == weight or all(
        maximum_flow(graph, root, node).flow_value >= need - weight
        for node in range(len(left))
        if node != root
    )
