# SPDX-License-Identifier: Apache-2.0
"""Notice that a link of a group has slowed down, and pack the trees anew between operations."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from .._api.collective import Kind, Tree
from ..errors import UsageError
from ..group import Group
from .agree import use
from .model import Matrix, Topology, load
from .pack import KINDS
from .probing import Prober
from .routes import next_hops, route

SLOWER = 1.5  # times the reference: the trees are slow
_FASTER = 1.1  # times as fast: new trees are worth it
_LONGEST_PAUSE = 32  # checks
_NOISE = 0.8  # of what a pair had; above, its links are as before
_LEAST_RATIO = 1e-3  # every link keeps a rate
_LEAST, _MOST = 1 << 16, 1 << 23  # bytes of the all-reduce that is timed
_FEW, _MANY = 2, 6  # all-reduces, the fastest of which counts


class Pauses:
    """The checks at which to pack anew: fewer and fewer while that does not help."""

    def __init__(self) -> None:
        self._left, self._next = 0, 1

    def is_over(self) -> bool:
        """Return whether to pack at this check. Each call is one check."""
        self._left -= 1
        return self._left < 0

    def grow(self) -> None:
        """Double the next pause, up to 32 checks, because packing did not help."""
        self._left, self._next = self._next, min(2 * self._next, _LONGEST_PAUSE)

    def end(self) -> None:
        """Pause no more, because packing helped."""
        self._left, self._next = 0, 1


class Watch:
    """The trees of a topology for a group, as use() gives them, kept up to date.

    Every member creates one, and calls check() at the same points of its program, without other operations
    under way. The constructor measures each pair, for about `seconds`, and each check lasts about as long if
    all is well. Only rank 0's topology counts. `timeout`, in seconds, bounds each wait. Raises what use()
    and probe() raise, and UsageError if `kinds` lacks "all_reduce". Not thread-safe.
    """

    def __init__(
        self,
        group: Group,
        topology: Topology | str | Path,
        kinds: Sequence[Kind] = KINDS,
        roots: Sequence[int] | None = None,
        seconds: float = 0.1,
        timeout: float = 60.0,
    ) -> None:
        if "all_reduce" not in kinds:
            raise UsageError("the links are watched by all-reduces: add all_reduce to the kinds")
        self._group, self._kinds, self._roots = group, kinds, roots
        self._seconds, self._timeout = seconds, timeout
        self.trees: list[Tree] = use(group, topology, kinds, roots, timeout)
        """The group's trees."""
        self._base: Topology | None = None  # at rank 0: as it was when pairs had the rates `_then`
        if group.rank == 0:
            self._base = topology if isinstance(topology, Topology) else load(topology)
        self.topology = self._base
        """What the trees were packed for, at rank 0; None elsewhere."""
        rate = sum(tree.rate for tree in self.trees if tree.kind == "all_reduce")
        nbytes = min(max(rate * seconds / _FEW, _LEAST), _MOST)
        self._data = np.zeros(int(nbytes), np.uint8)
        self._then = self._pairs()
        self._reference = self._time(_MANY)
        self._pauses = Pauses()
        self._was_slow = False  # at the last check
        self._avoids = False  # the trees were packed for slower links than the topology's

    def check(self, anew: bool = False) -> bool:
        """Time an all-reduce along the trees, and pack them anew if it took 1.5 times the fastest one.

        Members decide by the slowest member's time, so all do the same. Then each pair is measured; links
        change in proportion. The new trees replace the old ones if they are a tenth faster now. Returns
        whether they did. If not, the next checks pass, more each time, before trees are packed again.

        Trees that avoid a slow link do not notice that it recovers, so they are packed anew with such pauses
        too. `anew` packs in any case. Raises ConnectionLost at every member if one is gone, and
        DeadlineExceeded.
        """
        took = self._time(_FEW)
        if took > SLOWER * self._reference:
            took = self._time(_MANY)
        slow = took > SLOWER * self._reference
        if not slow:
            self._reference = min(self._reference, took)
        elif not self._was_slow:
            self._pauses.end()  # they were those of something else
        self._was_slow = slow
        if not anew and not ((slow or self._avoids) and self._pauses.is_over()):
            return False
        before, now = self.topology, self._pairs()
        if self._base is not None:
            self.topology = scaled(self._base, self._then, now)
        self.trees = self._use()
        takes = self._time(_MANY)
        if takes * _FASTER <= took:
            self._reference = takes
            self._avoids = self._largest(float(self.topology != self._base)) > 0
            self._pauses.end()
            return True
        self.topology = before
        self.trees = self._use()
        self._pauses.grow()
        return False

    def _use(self) -> list[Tree]:
        topology = self.topology if self.topology is not None else ""
        return use(self._group, topology, self._kinds, self._roots, self._timeout)

    def _pairs(self) -> Matrix:
        """Return bytes per second from each member to each other one."""
        with Prober(self._group, self._seconds, self._timeout) as prober:
            return prober.pairs()[0]

    def _time(self, count: int) -> float:
        """Return the seconds of the fastest of some all-reduces, at the slowest member."""
        group, best = self._group, np.inf
        for _ in range(count):
            group.barrier(timeout=self._timeout)
            began = time.monotonic()
            group.all_reduce(self._data, self._data, algorithm="trees", timeout=self._timeout)
            best = min(best, time.monotonic() - began)
        return self._largest(best)

    def _largest(self, value: float) -> float:
        """Return the largest of all members' values."""
        largest = self._group.all_reduce(np.array([value]), op="max", timeout=self._timeout)
        return float(largest[0])


def scaled(topology: Topology, then: Matrix, now: Matrix) -> Topology:
    """Return the topology with links as fast as pairs are `now`. `then` is what pairs had in `topology`.

    The rate of a link between two members changes as their pair's does. Another link changes as the fastest
    of the pairs that pass it: a slower one has its bottleneck elsewhere.
    """
    size = topology.size
    ratios = np.divide(now, then, out=np.ones_like(now), where=then > 0)
    ratios[(ratios > _NOISE) & (ratios < 1 / _NOISE)] = 1.0
    ratios = np.maximum(ratios, _LEAST_RATIO)
    hops = next_hops(topology.capacity)
    passing: dict[tuple[int, int], float] = {}
    for one, other in np.argwhere(~np.eye(size, dtype=bool)).tolist():
        for link in route(hops, one, other):
            passing[link] = max(passing.get(link, 0.0), float(ratios[one, other]))
    links = []
    for each in topology.links:
        ends = topology.index[each.source], topology.index[each.target]
        ratio = ratios[ends] if max(ends) < size else passing.get(ends, 1.0)
        links.append(replace(each, bandwidth=each.bandwidth * float(ratio)))
    return replace(topology, links=tuple(links))
