# SPDX-License-Identifier: Apache-2.0
"""Choose how many steps lie between two exchanges: a fixed number, or one found while training.

A period of the losses needs what all processes have seen, so it asks for a mean of some numbers at each
exchange. What trains and what simulates use the same objects.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import rules

# Gives the mean of a small array over all processes.
Mean = Callable[[NDArray[Any]], NDArray[Any]]
# How many steps before and after an exchange tell what it cost.
_LOOK = 2


class Period:
    """A number of steps between exchanges."""

    def __init__(self, steps: int) -> None:
        if steps < 1:
            raise ValueError(f"a period of {steps} steps: give 1 or more")
        self.steps = int(steps)

    def observe(self, loss: float) -> None:
        """Take the loss of the next step or steps."""

    def following(self, learning_rate: float, mean: Mean) -> int:
        """Return the steps until the next exchange.

        Call it at each exchange, with the learning rate in force.
        """
        return self.steps

    def state(self) -> Mapping[str, Any]:
        """Return what a backup keeps."""
        return {"period": np.int64(self.steps)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take what `state` gave."""
        self.steps = int(state["period"])

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.steps})"


class QSR(Period):
    """The quadratic rule (arXiv 2310.14423): the smaller the learning rate, the longer the period.

    It is never shorter than `base`.
    """

    def __init__(self, alpha: float, base: int = 4) -> None:
        super().__init__(base)
        self._alpha, self._base = alpha, base

    def following(self, learning_rate: float, mean: Mean) -> int:
        """Return the period for the learning rate."""
        self.steps = rules.qsr_period(self._alpha, learning_rate, self._base)
        return self.steps


class Quality(Period):
    """The longest period whose price stays within `bound`, found while training, after Nexus.

    It begins with `first` steps. The price of a period is how much larger the loss is right after an exchange
    than right before it, in units of the first loss: what workers had gained apart and lost by averaging. A
    period of one step has none.
    """

    def __init__(self, bound: float = 0.02, first: int = 1, longest: int = 64) -> None:
        super().__init__(first)
        if not bound > 0 or longest < first:
            raise ValueError(
                f"Quality({bound}, {first}, {longest}): give a bound above 0, longest >= first"
            )
        self._bound, self._longest = bound, longest
        self._first_loss = math.nan
        self._before = math.nan
        self._losses: list[float] = []

    def observe(self, loss: float) -> None:
        """Keep the loss for the next exchange."""
        self._losses.append(loss)

    def following(self, learning_rate: float, mean: Mean) -> int:
        # The first of these losses is that of the step before the exchange.
        """Return a longer or shorter period, by the price of the last one."""
        seen, self._losses = self._losses, []
        after = seen[1 : 1 + _LOOK]
        nan = math.nan
        mine = [self._before, _mean(after), _mean(seen[-_LOOK:]), seen[0] if seen else nan]
        before, then, latest, first = (float(each) for each in mean(np.array(mine)))
        if math.isnan(self._first_loss):
            self._first_loss = first
        cost = 0.0
        if self.steps > 1 and not math.isnan(before) and after:
            cost = rules.quality_cost(before, then, self._first_loss)
        self.steps = rules.quality_period(self.steps, cost, self._bound, self._longest)
        self._before = latest
        return self.steps

    def state(self) -> Mapping[str, Any]:
        """Return the period, and the losses that tell its price."""
        return {"period": np.array([self.steps, self._first_loss, self._before, *self._losses])}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take the period, and the losses that tell its price."""
        steps, self._first_loss, self._before, *self._losses = (
            float(each) for each in state["period"]
        )
        self.steps = int(steps)


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else math.nan


def as_period(period: int | Period) -> Period:
    """Return a number of steps as a Period."""
    return period if isinstance(period, Period) else Period(period)
