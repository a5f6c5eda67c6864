# SPDX-License-Identifier: Apache-2.0
"""Gossip: every process averages its model with those of a few others, and waits for none of them."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from ...errors import UsageError
from . import rules
from .base import Array, Synchronizer
from .members import Members

if TYPE_CHECKING:
    from ..process import Run


class Gossip(Synchronizer):
    """What the kinds of gossip have in common: when they exchange, and the choice of partners."""

    exchanges: ClassVar[bool] = True
    waits: ClassVar[bool] = False

    def __init__(self, period: int = 1, seed: int = 0) -> None:
        if period < 1:
            raise UsageError(f"period is {period}: give the number of steps between two exchanges")
        self.period = period
        self._seed = seed
        self._members: Members | None = None

    def begin(self, run: Run, x: Array) -> int:
        self._random = np.random.default_rng([self._seed, run.rank])
        self._open(run, x)
        return self.period

    def _open(self, run: Run, x: Array) -> None:
        raise NotImplementedError

    @property
    def members(self) -> Members:
        assert self._members is not None
        return self._members

    def partner(self) -> int | None:
        """One of the processes that can be reached, each as probable; None if there is none."""
        reachable = self.members.reachable
        return int(self._random.choice(reachable)) if reachable else None

    def close(self) -> None:
        if self._members is not None:
            self._members.close()


class PullGossip(Gossip):
    """Every `period` steps a process reads the model of a random other one, and takes the mean of both.

    Jin et al. 2016, "How to scale distributed deep learning?". A read disturbs nobody, and nobody waits. A
    model that was used already is not used again: a slow process would hold back a fast one. A process
    that dies is not read any more.
    """

    def _open(self, run: Run, x: Array) -> None:
        self._members = Members(run, x.nbytes)
        self._other = np.empty_like(x)
        self._used = dict.fromkeys(self._members.others, 0)
        self._members.store.publish(x)

    def exchange(self, x: Array, step: int, rate: float) -> int:
        partner = self.partner()
        mark = None if partner is None else self.members.pull(partner, self._other)
        if partner is not None and mark is not None and mark != self._used[partner]:
            self._used[partner] = mark
            x[:] = rules.pull(x, self._other)
        self.members.store.publish(x, step)
        return step + self.period


class PushGossip(Gossip):
    """Every `period` steps a process sends its model to a random other one, and takes the mean of its own
    and all that have arrived.

    Jin et al. 2016. A process that has not used the last model of a sender gets no newer one from it. One
    that dies gets nothing any more.
    """

    def _open(self, run: Run, x: Array) -> None:
        self._members = Members(run, 0, x.nbytes)

    def exchange(self, x: Array, step: int, rate: float) -> int:
        arrivals = self.members.arrivals()
        if arrivals:
            x[:] = rules.push(x, [each.data.view(x.dtype) for each in arrivals])
        for each in arrivals:
            each.release()
        partner = self.partner()
        if partner is not None:
            self.members.push(partner, x, step)
        return step + self.period


class SGP(Gossip):
    """Stochastic gradient push (Assran et al. 2019), asynchronous: push-sum over an exponential graph.

    Every `period` steps a process sends half of its sum and half of its weight to the process 1, 2, 4, ...
    further, adds what has arrived, and goes on with sum / weight. Weights make up for unequal numbers of
    messages: without losses, the weights of all processes and messages add up to their number, always. What
    cannot be sent stays with the sender. A process that dies takes its part of the sum and of the weight
    with it, which leaves the mean of the others as it is.
    """

    def _open(self, run: Run, x: Array) -> None:
        self._members = Members(run, 0, x.nbytes)
        self._turns = 0
        self.weight = getattr(self, "weight", 1.0)
        self._sum = x * self.weight
        self._unbiased = x.copy()

    def exchange(self, x: Array, step: int, rate: float) -> int:
        # The optimizer has moved x = sum / weight; the sum moves by as much.
        self._sum += x - self._unbiased
        self._send()
        arrivals = self.members.arrivals()
        arrived = [(each.data.view(x.dtype), weight_of(each.mark)) for each in arrivals]
        self._sum, self.weight = rules.push_sum(self._sum, self.weight, arrived)
        for each in arrivals:
            each.release()
        x[:] = rules.unbiased(self._sum, self.weight)
        np.copyto(self._unbiased, x)
        return step + self.period

    def _send(self) -> None:
        """To the next process in turn that can be reached."""
        members = self.members
        reachable = set(members.reachable)
        for _ in range(rules.hops(members.size)):
            to = rules.exponential_peer(members.rank, self._turns, members.size)
            self._turns += 1
            if to in reachable:
                break
        else:
            return
        half = self._sum * 0.5
        if members.push(to, half, _mark_of(self.weight / 2)):
            self._sum -= half
            self.weight /= 2

    def state(self) -> Mapping[str, Array]:
        return {"weight": np.float64(self.weight)}  # type: ignore[dict-item]

    def restore(self, state: Mapping[str, Array]) -> None:
        self.weight = float(state["weight"])


def _mark_of(weight: float) -> int:
    """The bits of a number, as a mark."""
    return int(struct.unpack("<Q", struct.pack("<d", weight))[0])


def weight_of(mark: int) -> float:
    """The weight that a message of push-sum carries; 0 for what is none."""
    weight = float(struct.unpack("<d", struct.pack("<Q", mark))[0])
    return weight if 0 < weight < 1e300 else 0.0
