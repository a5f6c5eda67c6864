# SPDX-License-Identifier: Apache-2.0
"""Elastic averaging: every process is tied to a common centre by a spring."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from ...errors import UsageError
from . import rules
from .base import Array
from .owned_shards import Owned, Strips

if TYPE_CHECKING:
    from ..run.membership import Membership


class EASGD(Owned):
    """Move each process and a centre towards each other, every `period` steps, by beta / N of their distance.

    Zhang, Choromanska and LeCun 2015. The centre is cut into strips, one for each process. A process reads a
    strip and sends its owner the difference, by which both move: their sum stays. Nobody waits. If the owner
    has not applied the last difference yet, the strip is left for the next time. The strip of a process that
    dies ties nobody any more.
    """

    comes_back: ClassVar[bool] = True

    def __init__(self, period: int = 10, beta: float = 0.9) -> None:
        if period < 1 or not 0 < beta <= 1:
            raise UsageError(f"period is {period} and beta {beta}: give period >= 1, 0 < beta <= 1")
        self.period, self.beta = period, beta

    def begin(self, members: Membership, x: Array) -> int:
        """Share the centre in strips, and begin to apply what arrives for the own one."""
        self._alpha = rules.elastic_rate(self.beta, members.size)
        self._open(Strips(members, x, self._take))
        return members.step + self.period

    def _take(self, rank: int, number: int, difference: Array) -> None:
        self.strips.own += difference
        self.strips.publish()

    def exchange(self, x: Array, step: int, learning_rate: float) -> int:
        """Move towards the centre, strip by strip."""
        for owner in self.strips.owners:
            found = self.strips.read(owner)
            if found is None:
                continue
            mine = x[self.strips.part(owner)]
            difference = rules.elastic_difference(mine, found[2], self._alpha, out=found[2])
            if self.strips.send(owner, difference.astype(x.dtype, copy=False), step):
                mine -= difference
        self.members.offer(x, step)
        return step + self.period
