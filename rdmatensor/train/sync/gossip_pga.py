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
    """Gossip along the exponential graph every `period` steps, and average all models every `average_every`.

    In gossip, a process takes the mean of its model and that of the process 1, 2, 4, ... further, as it is.
    Only the average of all models waits. Gossip keeps models near each other meanwhile, so that it can be
    rare.
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
        """Open the stores, and remember the group."""
        self._run = members
        return super().begin(members, x)

    def partner(self) -> int | None:
        """Return the next process along the exponential graph; None if it is lost."""
        members = self.members
        to = rules.exponential_peer(members.rank, self._turns, members.size)
        self._turns += 1
        return to if to in members.reachable else None

    def state(self) -> Mapping[str, Array]:
        """Return the base's state, and the number of turns."""
        return {**super().state(), "turns": np.array(self._turns)}

    def restore(self, state: Mapping[str, Array]) -> None:
        """Take the base's state, and the number of turns."""
        super().restore(state)
        self._turns = int(state["turns"])

    def regroup(
        self, states: Sequence[Mapping[str, Array]], rank: int, size: int
    ) -> Mapping[str, Array]:
        """Return the number of turns, which is equal in all."""
        return {"turns": states[0]["turns"]}

    def exchange(self, x: Array, step: int, learning_rate: float) -> int:
        """Average all models if that is due, else gossip."""
        if not rules.averages_globally(step, self._every):
            return super().exchange(x, step, learning_rate)
        mean(self._run, x, f"the models after step {step}")
        self.publish(x, step)
        return step + self.period

    def conclude(self, x: Array, step: int) -> None:
        """Average all models."""
        average(self._run, x, f"the models after step {step}, the last one")
