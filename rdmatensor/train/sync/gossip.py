# SPDX-License-Identifier: Apache-2.0
"""Gossip: every process averages its model with those of a few others, and waits for none of them."""

from __future__ import annotations

import json
import struct
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from ...errors import UsageError
from ...store import Arrival
from . import rules
from .base import Array, Parameters, same_size
from .members import Members

if TYPE_CHECKING:
    from ..run.membership import Membership

# Seconds between two looks at what has arrived.
_PAUSE = 5e-5
# A weight that is not divided any more. Below 2**-149, float32 has no number for sum and weight.
_LEAST_WEIGHT = 2.0**-20


class Gossip(Parameters, ABC):
    """The base of the kinds of gossip: when they exchange, and the choice of partners."""

    waits: ClassVar[bool] = False
    comes_back: ClassVar[bool] = True

    def __init__(self, period: int = 1, seed: int = 0) -> None:
        if period < 1:
            raise UsageError(f"period is {period}: give the number of steps between two exchanges")
        self.period = period
        self._seed = seed
        self._members: Members | None = None
        self._random: np.random.Generator | None = None

    def begin(self, members: Membership, x: Array) -> int:
        """Open the stores of all processes."""
        self._random = self._random or np.random.default_rng([self._seed, members.rank])
        self._open(members, x)
        return members.step + self.period

    @abstractmethod
    def _open(self, members: Membership, x: Array) -> None:
        """Set `_members`."""

    @property
    def members(self) -> Members:
        """The other processes."""
        assert self._members is not None
        return self._members

    def partner(self) -> int | None:
        """Return a process that can be reached, each with the same probability; None if there is none."""
        assert self._random is not None
        reachable = self.members.reachable
        return int(self._random.choice(reachable)) if reachable else None

    def state(self) -> Mapping[str, Array]:
        """Return the state of the random numbers."""
        assert self._random is not None
        return {"random": np.array(json.dumps(self._random.bit_generator.state))}

    def restore(self, state: Mapping[str, Array]) -> None:
        """Take the state of the random numbers."""
        if "random" not in state:
            return
        self._random = np.random.default_rng()
        self._random.bit_generator.state = json.loads(str(state["random"]))

    def regroup(
        self, states: Sequence[Mapping[str, Array]], rank: int, size: int
    ) -> Mapping[str, Array]:
        """Return nothing: random numbers begin anew."""
        return {}  # random numbers begin anew

    def close(self) -> None:
        """Close the stores."""
        if self._members is not None:
            self._members.close()


class PullGossip(Gossip):
    """Average with the model of a random other process every `period` steps.

    Jin et al. 2016, "How to scale distributed deep learning?". A process reads the other's model, which
    disturbs nobody; nobody waits. A model that was used already is not used again: a slow process would hold
    back a fast one. A process that dies is not read any more.
    """

    _marks: Array | None = None
    """The step of the model that was used last, of each process, and of the own one that others can read."""

    def _open(self, members: Membership, x: Array) -> None:
        self._members = Members(members, x.nbytes)
        self._other = np.empty_like(x)
        if self._marks is None:
            self._marks = np.zeros(members.size, np.uint64)
        self._members.store.publish(x, int(self._marks[members.rank]))

    def exchange(self, x: Array, step: int, learning_rate: float) -> int:
        """Take the mean with a partner's model, if it is a new one, and publish the result."""
        partner = self.partner()
        mark = None if partner is None else self.members.pull(partner, self._other)
        assert self._marks is not None
        if partner is not None and mark is not None and mark != self._marks[partner]:
            self._marks[partner] = mark
            rules.pull(x, self._other, out=x)
        self.publish(x, step)
        self.members.offer(x, step)
        return step + self.period

    def publish(self, x: Array, step: int) -> None:
        """Let others read the model."""
        assert self._marks is not None
        self._marks[self.members.rank] = step
        self.members.store.publish(x, step)

    def state(self) -> Mapping[str, Array]:
        """Return the base's state, and the steps of the models that were used."""
        assert self._marks is not None
        return {**super().state(), "marks": self._marks}

    def restore(self, state: Mapping[str, Array]) -> None:
        """Take the base's state, and the steps of the models that were used."""
        super().restore(state)
        if "marks" in state:
            self._marks = np.array(state["marks"])


class PushGossip(Gossip):
    """Send the model to a random other process every `period` steps, and average with what has arrived.

    Jin et al. 2016. A process takes the mean of its own model and all that have arrived. One that has not
    used the last model of a sender gets no newer one from it. One that dies gets nothing any more.
    """

    _arrived: Array | None = None
    """Models that had arrived when the state was asked for."""

    def _open(self, members: Membership, x: Array) -> None:
        self._members = Members(members, 0, x.nbytes)
        self._arrived = np.zeros(0, x.dtype) if self._arrived is None else self._arrived

    def _receive(self) -> None:
        assert self._arrived is not None
        arrivals = self.members.arrivals()
        models = [each.data.view(self._arrived.dtype) for each in arrivals]
        self._arrived = np.concatenate([self._arrived, *models])
        for each in arrivals:
            each.release()

    def exchange(self, x: Array, step: int, learning_rate: float) -> int:
        """Average with the models that have arrived, and send the result to a partner."""
        self._receive()
        assert self._arrived is not None
        if self._arrived.size:
            rules.push(x, list(self._arrived.reshape(-1, x.size)), out=x)
            self._arrived = self._arrived[:0]
        partner = self.partner()
        if partner is not None:
            self.members.push(partner, x, step)
        self.members.offer(x, step)
        return step + self.period

    def state(self) -> Mapping[str, Array]:
        """Return the base's state, and the models that have arrived."""
        self._receive()
        assert self._arrived is not None
        return {**super().state(), "arrived": self._arrived}

    def restore(self, state: Mapping[str, Array]) -> None:
        """Take the base's state, and the models that had arrived."""
        super().restore(state)
        if "arrived" in state:
            self._arrived = np.array(state["arrived"])


class SGP(Gossip):
    """Stochastic gradient push (Assran et al. 2019): push-sum over an exponential graph.

    Every `period` steps a process sends half of its sum and half of its weight to the process 1, 2, 4, ...
    further, adds what has arrived, and goes on with sum / weight. Weights make up for unequal numbers of
    messages: without losses, the weights of all processes and messages add up to their number, always. What
    cannot be sent stays with the sender. The optimizer moves a process's model by what it says, so the sum
    moves by that times the weight: a process that hears of nobody for a while trains as if it were alone.

    With `wait`, a process waits up to so many seconds for the message that the paper's would get in this
    turn, and keeps those of later turns until then: models mix better. It waits no second time for a process
    that was late, until that has sent again. With 0 it waits for nobody.

    A process that dies takes its part of the sum and of the weight with it, which leaves the mean of the
    others as it is; one that comes back brings a weight of 1. When all go on from a backup, what was under
    way is lost; each scales its sum and its weight, so that the weights add up again.
    """

    def __init__(self, period: int = 1, seed: int = 0, wait: float = 0.0) -> None:
        super().__init__(period, seed)
        if not 0 <= wait < float("inf"):
            raise UsageError(f"wait is {wait}: give seconds, or 0 to wait for nobody")
        self.weight = 1.0
        self._wait = wait
        self._turns = 0
        self._sum: Array | None = None
        self._unbiased: Array | None = None
        self._due: set[int] = set()  # whose message should be here
        self._early: list[Arrival] = []

    def _open(self, members: Membership, x: Array) -> None:
        self._members = Members(members, 0, x.nbytes)
        if self._sum is None or self._unbiased is None:
            self._sum, self._unbiased = x * self.weight, x.copy()
        self._sum, self._unbiased = (
            same_size(each, x.size) for each in (self._sum, self._unbiased)
        )
        if members.group is None:
            return
        factor = members.size / float(
            members.group.all_reduce(
                np.array([self.weight]), timeout=members.timeout, detail="weights"
            )[0]
        )
        self._sum *= factor
        self.weight *= factor

    def exchange(self, x: Array, step: int, learning_rate: float) -> int:
        """Move the sum as the optimizer has moved the model, mix, and return to sum / weight."""
        assert self._sum is not None and self._unbiased is not None
        # The optimizer has moved x = sum / weight.
        np.subtract(x, self._unbiased, out=self._unbiased)
        self._unbiased *= self.weight
        self._sum += self._unbiased
        try:
            self._mix()
        finally:  # also when a transfer fails: the sum has moved
            rules.unbiased(self._sum, self.weight, out=x)
            np.copyto(self._unbiased, x)
        self.members.offer(x, step)
        return step + self.period

    def _mix(self) -> None:
        """Send a half, and add what has arrived. It uses the memory of `_unbiased`."""
        assert self._sum is not None and self._unbiased is not None
        members = self.members
        source = rules.exponential_source(members.rank, self._turns, members.size)
        awaited = self._wait > 0 and source not in self._due
        self._due.add(source)
        to = self._next() if self.weight > _LEAST_WEIGHT else None
        # Memory that is there already costs less than new memory.
        half, half_weight = np.multiply(self._sum, 0.5, out=self._unbiased), self.weight / 2
        end = time.monotonic() + self._wait
        while True:
            if to is not None and members.push(to, half, _mark_of(half_weight)):
                self._sum -= half
                self.weight -= half_weight
                to = None
            self._receive()
            waits_to_send = to is not None and not members.store.member(to).gone
            waits_to_hear = (
                awaited and source in self._due and not members.store.member(source).gone
            )
            if not (waits_to_send or waits_to_hear) or time.monotonic() >= end:
                break
            time.sleep(_PAUSE)

    def _receive(self, early: bool = False) -> None:
        """Add what has arrived: all of it if nobody waits, or if `early`, and else what is due."""
        assert self._sum is not None
        arrivals = [*self._early, *self.members.arrivals()]
        used = [each for each in arrivals if early or not self._wait or each.rank in self._due]
        self._early = [each for each in arrivals if each not in used]
        arrived = [(each.data.view(self._sum.dtype), weight_of(each.mark)) for each in used]
        _, self.weight = rules.push_sum(self._sum, self.weight, arrived, out=self._sum)
        for each in used:
            self._due.discard(each.rank)
            each.release()

    def _next(self) -> int | None:
        """Return to whom to send: the next process in turn, or None.

        Where nobody waits for a turn, it is the next one that can be reached.
        """
        members = self.members
        reachable = set(members.reachable)
        for _ in range(1 if self._wait else rules.hops(members.size)):
            to = rules.exponential_peer(members.rank, self._turns, members.size)
            self._turns += 1
            if to in reachable:
                return to
        return None

    def state(self) -> Mapping[str, Array]:
        """Return sum and weight, with all that has arrived."""
        assert self._sum is not None and self._unbiased is not None
        self._receive(early=True)
        numbers = np.array([self.weight, self._turns])
        return {"sum": self._sum, "unbiased": self._unbiased, "weight and turns": numbers}

    def restore(self, state: Mapping[str, Array]) -> None:
        """Take sum, weight and turn."""
        if "sum" not in state:
            return
        self._sum, self._unbiased = np.array(state["sum"]), np.array(state["unbiased"])
        self.weight, turns = (float(each) for each in state["weight and turns"])
        self._turns = int(turns)


def _mark_of(weight: float) -> int:
    """Return the bits of a float64 as a mark."""
    return int(struct.unpack("<Q", struct.pack("<d", weight))[0])


def weight_of(mark: int) -> float:
    """Return the weight that a message of push-sum carries; 0 for what is none."""
    weight = float(struct.unpack("<d", struct.pack("<Q", mark))[0])
    return weight if 0 < weight < 1e300 else 0.0
