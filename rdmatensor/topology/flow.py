# SPDX-License-Identifier: Apache-2.0
"""Bounds that no algorithm can beat, from maximum flows.

A broadcast cannot be faster than the smallest maximum flow from its root to a member. That is also enough
(Edmonds 1973), and with switches that forward as much as comes in (Bang-Jensen, Frank, Jackson 1995). An
all-gather is bounded by cuts in the same way: see ForestColl (arXiv 2402.06787).
"""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import maximum_flow

from .model import Matrix, Topology

# Flows are computed in whole numbers: the largest capacity has so many.
_STEPS = 1 << 24


def _flows(capacity: Matrix, source: int, targets: range, enough: float = 0.0) -> float:
    """Return the smallest maximum flow from the source to one of the targets; stop below `enough`."""
    unit = capacity.max(initial=0.0) / _STEPS
    if unit == 0:
        return 0.0 if targets else np.inf
    graph = csr_matrix(np.rint(capacity / unit).astype(np.int32))
    least = np.inf
    for target in targets:
        if target != source:
            least = min(least, maximum_flow(graph, source, target).flow_value * unit)
            if least < enough:
                break
    return least


def broadcast_bound(topology: Topology, root: int) -> float:
    """Return the bytes per second that every member can receive from the root; infinite for one member."""
    return _flows(topology.capacity, root, range(topology.size))


def all_gather_bound(topology: Topology) -> float:
    """Return the most bytes per second that each member can send to all others at the same time.

    This is the largest x for which a source with an edge of capacity x to every member can send size * x to
    each.
    """
    size, nodes = topology.size, len(topology.capacity)
    if size == 1:
        return np.inf
    grown = np.zeros((nodes + 1, nodes + 1))
    grown[:nodes, :nodes] = topology.capacity
    # What a member receives from the others, and what leaves it, bounds x.
    low = 0.0
    high = min(
        topology.capacity[:, :size].sum(axis=0).min() / (size - 1),
        topology.capacity[:size].sum(axis=1).min(),
    )
    while high - low > 1e-7 * high:
        grown[nodes, :size] = middle = (low + high) / 2
        enough = size * middle * (1 - 1e-9) - 2 * grown.max() / _STEPS * size
        if _flows(grown, nodes, range(size), enough) >= enough:
            low = middle
        else:
            high = middle
    return low


def reduce_scatter_bound(topology: Topology) -> float:
    """Return the bound of a reduce-scatter, which is an all-gather that runs backwards."""
    return all_gather_bound(topology.reversed())
