# SPDX-License-Identifier: Apache-2.0
"""Gossip-PGA: gossip along the exponential graph, and every now and then the mean of all models.

Chen, Yuan, Zhang, Pan, Xu and Yin 2021, arXiv 2105.09080.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from ...errors import UsageError
from . import rules
from .base import Array, average, mean
from .gossip import PullGossip

if TYPE_CHECKING:
    from ..run.membership import Membership


class GossipPGA(PullGossip):
    """Every `period` steps, a process takes the mean of its model and that of the process 1, 2, 4, ...
    further, as it is; every `average_every` steps, all take the mean of all models.

    Only the latter waits. Gossip keeps models near each other meanwhile, so that it can be rare.
    """

    waits: ClassVar[bool] = True
    comes_back: ClassVar[bool] = False

    def __init__(self, average_every: int = 16, period: int = 1) -> None:
        super().__init__(period)
        if average_every < period or average_every % period:
            raise UsageError(
                f"average_every is {average_every}: give a multiple of the period, {period}"
            )
        self._every = average_every
        self._turns = 0
        self._run: Membership | None = None

    def begin(self, members: Membership, x: Array) -> int:
        self._run = members
        return super().begin(members, x)

    def partner(self) -> int | None:
        members = self.members
        to = rules.exponential_peer(members.rank, self._turns, members.size)
        self._turns += 1
        return to if to in members.reachable else None

    def state(self) -> Mapping[str, Array]:
        return {**super().state(), "turns": np.array(self._turns)}

    def restore(self, state: Mapping[str, Array]) -> None:
        super().restore(state)
        self._turns = int(state["turns"])

    def regroup(
        self, states: Sequence[Mapping[str, Array]], rank: int, size: int
    ) -> Mapping[str, Array]:
        return {"turns": states[0]["turns"]}

    def exchange(self, x: Array, step: int, learning_rate: float) -> int:
        if not rules.averages_globally(step, self._every):
            return super().exchange(x, step, learning_rate)
        mean(self._run, x, f"the models after step {step}")
        self.publish(x, step)
        return step + self.period

    def conclude(self, x: Array, step: int) -> None:
        average(self._run, x, f"the models after step {step}, the last one")
