# SPDX-License-Identifier: Apache-2.0
"""Routes between the nodes of a topology, as packets take them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .model import Matrix


def next_hops(links: Matrix) -> list[list[int]]:
    """Return the neighbour by which each node reaches each other one: the fewest links, then the widest.

    It is -1 where no route leads, and for the node itself.
    """
    size = len(links)
    hops = [[-1] * size for _ in range(size)]
    for target in range(size):
        reached = {target: (0, np.inf)}
        edge = [target]
        while edge:
            found: dict[int, tuple[int, float]] = {}
            for node in edge:
                length, width = reached[node]
                for other in np.flatnonzero(links[:, node]).tolist():
                    wide = min(width, float(links[other, node]))
                    if other in reached or wide <= found.get(other, (0, 0.0))[1]:
                        continue
                    found[other] = length + 1, wide
                    hops[other][target] = node
            reached.update(found)
            edge = list(found)
    return hops


def route(hops: list[list[int]], source: int, target: int) -> Iterator[tuple[int, int]]:
    """Yield the links of the route, each as its two ends."""
    while source != target and hops[source][target] >= 0:
        yield source, hops[source][target]
        source = hops[source][target]
