# SPDX-License-Identifier: Apache-2.0
"""The cheapest spanning trees of dense graphs, with a root or without directions."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy.sparse.csgraph import minimum_spanning_tree

from .model import Matrix

Parents = npt.NDArray[np.int64]


def minimum_arborescence(cost: Matrix, root: int) -> Parents | None:
    """Return the parent of each node in the cheapest tree from `root`, whose parent is itself.

    `cost[u, v]` is the cost of the edge from u to v, infinite where there is none. Returns None if the root
    does not reach all nodes. Chu, Liu (1965), Edmonds (1967): nodes take their cheapest edges, circles
    become nodes.
    """
    size = len(cost)
    cost = cost.copy()
    np.fill_diagonal(cost, np.inf)
    cost[:, root] = np.inf
    parents: Parents = np.argmin(cost, axis=0)
    parents[root] = root
    least = cost[parents, np.arange(size)]
    least[root] = 0.0
    if not np.isfinite(least).all():
        return None
    circle = _circle(parents, root)
    if circle is None:
        return parents
    # The circle becomes the last node of a smaller graph. Entering it at v replaces v's edge.
    inside = np.zeros(size, bool)
    inside[circle] = True
    outside = np.flatnonzero(~inside)
    enter = cost[np.ix_(outside, circle)] - least[circle]
    leave = cost[np.ix_(circle, outside)]
    entered, left = np.argmin(enter, axis=1), np.argmin(leave, axis=0)
    few = len(outside)
    small = np.full((few + 1, few + 1), np.inf)
    small[:few, :few] = cost[np.ix_(outside, outside)]
    small[:few, few] = enter[np.arange(few), entered]
    small[few, :few] = leave[left, np.arange(few)]
    above = minimum_arborescence(small, int(np.searchsorted(outside, root)))
    if above is None:
        return None
    for number, node in enumerate(outside):
        parent = above[number]
        parents[node] = circle[left[number]] if parent == few else outside[parent]
    parents[circle[entered[above[few]]]] = outside[above[few]]
    return parents


def _circle(parents: Parents, root: int) -> Parents | None:
    """Return the nodes of one circle, or None."""
    seen = np.zeros(len(parents), np.int64)
    seen[root] = -1
    for start in range(len(parents)):
        node = start
        while seen[node] == 0:
            seen[node] = start + 1
            node = int(parents[node])
        if seen[node] == start + 1:
            members = [node]
            while (node := int(parents[node])) != members[0]:
                members.append(node)
            return np.array(sorted(members))
    return None


def minimum_tree(cost: Matrix) -> Parents | None:
    """Return the parents in the cheapest spanning tree without directions, seen from its centre.

    `cost` is symmetric. Returns None if the graph is not connected.
    """
    size = len(cost)
    # Edges of cost 0 would be none; adding to all changes no comparison of trees.
    found = minimum_spanning_tree(np.where(np.isfinite(cost), cost + 1.0, 0.0)).tocoo()
    if found.nnz != size - 1:
        return None
    neighbours: list[list[int]] = [[] for _ in range(size)]
    for one, other in zip(found.row.tolist(), found.col.tolist(), strict=True):
        neighbours[one].append(other)
        neighbours[other].append(one)
    return _hang(neighbours, _centre(neighbours))


def _hang(neighbours: list[list[int]], root: int) -> Parents:
    parents = np.full(len(neighbours), -1)
    parents[root] = root
    waiting = [root]
    for node in waiting:
        for other in neighbours[node]:
            if parents[other] < 0:
                parents[other] = node
                waiting.append(other)
    return parents


def _centre(neighbours: list[list[int]]) -> int:
    """Return a node from which the farthest other one is nearest: take leaves off until few nodes remain."""
    degree = [len(each) for each in neighbours]
    left = set(range(len(neighbours)))
    while len(left) > 2:
        leaves = [node for node in left if degree[node] <= 1]
        left -= set(leaves)
        for leaf in leaves:
            for other in neighbours[leaf]:
                degree[other] -= 1
    return min(left)


def depth(parents: Parents) -> int:
    """Return the number of edges from the root to the farthest node."""
    deepest = 0
    for node in range(len(parents)):
        steps = 0
        while parents[node] != node:
            node, steps = int(parents[node]), steps + 1
        deepest = max(deepest, steps)
    return deepest
