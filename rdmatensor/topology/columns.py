# SPDX-License-Identifier: Apache-2.0
"""Pack spanning trees into the links of a topology by column generation.

The linear program chooses rates for the trees that are known, so that no link carries more than its
bandwidth. Its dual prices of the links tell which other tree would pay: the cheapest one. When that costs as
much as a tree earns, no tree is missing, and the prices prove it. An edge of a tree is the cheapest path
through switches, which gives what ForestColl (arXiv 2402.06787) reaches by splitting off edges.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import csc_matrix, hstack, vstack

from ..errors import UsageError
from .arborescence import Parents, minimum_arborescence, minimum_tree
from .model import Topology

# Ends the search: what was found is so near to what the prices prove to be the bound.
_GAP, _LARGE_GAP, _LARGE = 1e-6, 5e-3, 32
_ROUNDS = 5000
_SMOOTH = 0.7


@dataclass(frozen=True)
class Column:
    """A tree: which root's (as its place in the list of roots), and how often it uses each link."""

    owner: int
    parents: tuple[int, ...]
    links: tuple[int, ...]
    uses: tuple[float, ...]


class Problem:
    """Trees for each root in `roots`, all with the same rate; with `both`, trees used in both directions."""

    def __init__(self, topology: Topology, roots: Sequence[int], both: bool) -> None:
        self.size = topology.size
        self.roots = roots
        self.both = both
        self.capacity = topology.capacity
        self.sources, self.targets = np.nonzero(self.capacity)
        self.scale = float(self.capacity.max(initial=0.0)) or 1.0
        self.limits = self.capacity[self.sources, self.targets] / self.scale
        self.number = np.full(self.capacity.shape, -1)
        self.number[self.sources, self.targets] = np.arange(len(self.limits))

    def tree(self, owner: int, prices: np.ndarray) -> tuple[Column, float]:
        """Return the cheapest tree of a root at these prices of the links, and its cost.

        Raises UsageError if a member cannot be reached.
        """
        cost = np.full(self.capacity.shape, np.inf)
        cost[self.sources, self.targets] = prices
        via = np.full(cost.shape, -1)
        for switch in range(self.size, len(cost)):
            through = cost[:, switch, None] + cost[None, switch, :]
            better = through < cost
            cost[better], via[better] = through[better], switch
        between = cost[: self.size, : self.size]
        if self.both:
            parents = minimum_tree(between + between.T)
        else:
            parents = minimum_arborescence(between, self.roots[owner])
        if parents is None:
            raise UsageError(
                f"the links do not lead from member {self.roots[owner]} to every other one"
            )
        return self._column(owner, parents, via, prices)

    def _column(
        self, owner: int, parents: Parents, via: np.ndarray, prices: np.ndarray
    ) -> tuple[Column, float]:
        uses: dict[int, float] = {}
        for node, parent in enumerate(parents.tolist()):
            if node == parent:
                continue
            for one, other in ((parent, node), (node, parent))[: 2 if self.both else 1]:
                for link in self._path(one, other, via):
                    uses[link] = uses.get(link, 0.0) + 1.0
        cost = sum(prices[link] * count for link, count in uses.items())
        return Column(owner, tuple(parents.tolist()), tuple(uses), tuple(uses.values())), float(
            cost
        )

    def _path(self, source: int, target: int, via: np.ndarray) -> Iterator[int]:
        switch = via[source, target]
        if switch < 0:
            yield int(self.number[source, target])
        else:
            yield from self._path(source, int(switch), via)
            yield from self._path(int(switch), target, via)

    def first(self) -> dict[Column, None]:
        """Return trees to begin with: the widest one, and one through each neighbour of the root."""
        narrow = 1.0 / self.limits
        found: dict[Column, None] = {}
        for owner, root in enumerate(self.roots):
            prices = [narrow]
            for node in range(self.size) if self.both or len(self.roots) == 1 else [root]:
                near = np.where(self.sources == node, 1.0, self.size)
                if self.both:
                    near[self.targets == node] = 1.0
                if not self.both:
                    near[(self.sources == root) & (self.targets != node)] *= self.size
                near[(self.sources >= self.size) | (self.targets >= self.size)] = 1.0
                prices.append(near)
            if not self.both and len(self.roots) > 1:
                prices.append(np.where(self.sources == root, 1.0, self.size))
            for each in prices:
                found[self.tree(owner, each)[0]] = None
        return found

    def rates(self, columns: Sequence[Column]) -> tuple[float, np.ndarray, np.ndarray, np.ndarray]:
        """Return the rate that every root reaches, each tree's rate, and the prices of links and of roots."""
        owners, links = len(self.roots), len(self.limits)
        uses = csc_matrix(
            (
                np.concatenate([each.uses for each in columns]),
                np.concatenate([each.links for each in columns]).astype(np.int64),
                np.cumsum([0] + [len(each.links) for each in columns]),
            ),
            shape=(links, len(columns)),
        )
        owned = csc_matrix(
            (
                -np.ones(len(columns)),
                [each.owner for each in columns],
                np.arange(len(columns) + 1),
            ),
            shape=(owners, len(columns)),
        )
        rate = csc_matrix(np.concatenate([np.zeros(links), np.ones(owners)])[:, None])
        solved = linprog(
            np.concatenate([np.zeros(len(columns)), [-1.0]]),
            A_ub=hstack([vstack([uses, owned]), rate]).tocsc(),
            b_ub=np.concatenate([self.limits, np.zeros(owners)]),
            method="highs",
        )
        if not solved.success:
            raise RuntimeError(f"the solver gave up: {solved.message}")
        prices = -solved.ineqlin.marginals
        return -solved.fun, solved.x[:-1], prices[:links], prices[links:]

    def solve(self) -> tuple[list[Column], float, float]:
        """Return the trees that were tried, the best rate of every root, and the bound that prices prove.

        Both are in bytes per second. The prices of a linear program jump; prices between them and the best
        ones so far find good trees sooner (Wentges 1997).
        """
        gap = _GAP if self.size <= _LARGE else _LARGE_GAP
        known = self.first()
        rate, bound = 0.0, np.inf
        best = np.ones(len(self.limits)) / self.limits.sum()
        for each in range(_ROUNDS):
            rate, _, prices, worth = self.rates(list(known))
            prices = np.maximum(prices, 0.0)
            before = len(known)
            for share in (_SMOOTH if each else 1.0, 0.0):
                mixed = share * best + (1 - share) * prices / (self.limits @ prices)
                trees = [self.tree(owner, mixed) for owner in range(len(self.roots))]
                proved = float(self.limits @ mixed) / max(sum(cost for _, cost in trees), 1e-300)
                if proved < bound:
                    bound, best = proved, mixed
                for tree, _ in trees:
                    if prices[list(tree.links)] @ tree.uses < worth[tree.owner] * (1 - _GAP):
                        known[tree] = None
                if len(known) > before:
                    break
            if bound <= rate * (1 + gap) or len(known) == before:
                break
        return list(known), rate * self.scale, bound * self.scale
