# SPDX-License-Identifier: Apache-2.0
"""Local SGD: processes train apart, and every period all get the mean of their models.

Stich 2018, arXiv 1805.09767; Lin, Stich, Patel and Jaggi 2018, arXiv 1808.07217.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..run.membership import Membership
from .base import Array, Parameters, average, mean
from .periods import Period, as_period


class LocalSGD(Parameters):
    """Average all models every `period` steps: a number, or QSR or Quality.

    With a period of 1 and plain SGD, this is AllReduce. Each process keeps its own state of the optimizer,
    such as momentum.
    """

    def __init__(self, period: int | Period = 8) -> None:
        self.period = as_period(period)
        self._run: Membership | None = None

    def begin(self, members: Membership, x: Array) -> int:
        """Remember the group, and wait for the first period."""
        self._run = members
        return self.period.steps

    def exchange(self, x: Array, step: int, learning_rate: float) -> int:
        """Average all models, and choose the next period."""
        mean(self._run, x, f"the models after step {step}")
        return step + self.period.following(learning_rate, self._mean_loss)

    def conclude(self, x: Array, step: int) -> None:
        """Average all models."""
        average(self._run, x, f"the models after step {step}, the last one")

    def observe(self, loss: float) -> None:
        """Show the loss to the period."""
        self.period.observe(loss)

    def state(self) -> Mapping[str, Array]:
        """Return the state of the period."""
        return self.period.state()

    def restore(self, state: Mapping[str, Array]) -> None:
        """Take the state of the period."""
        self.period.restore(state)

    def regroup(
        self, states: Sequence[Mapping[str, Array]], rank: int, size: int
    ) -> Mapping[str, Array]:
        """Return the state of the period, which is equal in all."""
        return states[0]  # equal in all

    def _mean_loss(self, values: Array) -> Any:
        return mean(self._run, values, "losses")
