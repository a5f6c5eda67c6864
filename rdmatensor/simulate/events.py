# SPDX-License-Identifier: Apache-2.0
"""Simulated synchronizers whose workers wait for nobody: an event clock wakes each by itself.

A worker is a generator that yields the time at which it goes on.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Any

import numpy as np

from ..train.sync import rules
from .cluster import Cluster, Curve, Setting
from .problem import Array, Problem


class Events:
    """Workers that each compute a step, change their own model, and exchange as the synchronizer says."""

    def __init__(self, setting: Setting, problem: Problem, period: int = 1) -> None:
        self.cluster = Cluster(setting, problem)
        self.setting, self.period = setting, period
        self.now = 0.0
        self.steps = np.zeros(setting.workers, int)
        self._leaves = np.zeros(setting.workers)  # when each link is free to send, and to receive
        self._arrives = np.zeros(setting.workers)

    def run(self) -> Curve:
        """Trains until all workers together have taken their steps, and returns what happened."""
        size = self.setting.workers
        waiting: list[tuple[float, int, Iterator[float]]] = [
            (0.0, rank, self._life(rank)) for rank in range(size)
        ]
        heapq.heapify(waiting)
        budget = self.setting.steps * size
        while waiting and self.steps.sum() < budget:
            self.now, rank, life = heapq.heappop(waiting)
            if self.cluster.dead(rank, self.now):
                continue
            until = next(life)
            heapq.heappush(waiting, (max(until, self.now), rank, life))
            self.cluster.record(int(self.steps.sum()), self.now, self.judged)
        return self.cluster.curve

    def _life(self, rank: int) -> Iterator[float]:
        one = np.array([rank])
        while True:
            yield from self.before(rank)
            began = self.at(rank)
            gradient, _ = self.cluster.problem.gradients(began[None], self.cluster.numbers)
            yield self.now + float(self.cluster.durations(one)[0])
            self.step(rank, gradient[0])
            self.steps[rank] += 1
            if self.steps[rank] % self.period == 0:
                yield from self.exchange(rank)

    def at(self, rank: int) -> Array:
        """Where the worker computes its gradient."""
        found: Array = self.cluster.models[rank]
        return found

    def before(self, rank: int) -> Iterator[float]:
        """Waits until a step may begin."""
        yield from ()

    def step(self, rank: int, gradient: Array) -> None:
        """The local step."""
        self.cluster.models[rank] -= self.cluster.rate * gradient

    def exchange(self, rank: int) -> Iterator[float]:
        """What follows."""
        yield from ()

    def judged(self) -> Any:
        """The models whose accuracy counts."""
        return self.cluster.models[self.living()].mean(0, keepdims=True)

    def living(self) -> Array:
        """The ranks of those who live."""
        ranks = np.arange(self.setting.workers)
        found: Array = ranks[~self.cluster.dead(ranks, self.now)]
        return found

    def transfer(self, source: int, target: int, share: float = 1.0) -> float:
        """When the bytes of a share of the model have arrived, after those that use the same links."""
        nbytes = share * self.setting.model_bytes
        self.cluster.sent += nbytes
        begin = max(self.now, self._leaves[source], self._arrives[target])
        end = begin + nbytes / self.setting.bandwidth
        self._leaves[source] = self._arrives[target] = end
        return float(end + self.setting.latency_s)

    def spread(self, rank: int) -> float:
        """When a model has arrived that is spread over all workers, from or to `rank`, whose link counts."""
        nbytes = (self.setting.workers - 1) / self.setting.workers * self.setting.model_bytes
        self.cluster.sent += nbytes
        return self.now + nbytes / self.setting.bandwidth + self.setting.latency_s

    def peer(self, rank: int) -> int | None:
        """A random other worker; None if it is dead."""
        if self.setting.workers == 1:
            return None
        other = rules.random_peer(self.cluster.numbers, rank, self.setting.workers)
        return None if self.cluster.dead(other, self.now) else other


class PullGossip(Events):
    """Reads a random worker's model and goes on with the mean of both."""

    def exchange(self, rank: int) -> Iterator[float]:
        other = self.peer(rank)
        if other is not None:
            read = self.cluster.models[other].copy()  # as it is when the read begins
            yield self.transfer(other, rank)
            if not self.cluster.fails().any():
                self.cluster.models[rank] = rules.pull(self.cluster.models[rank], read)


class Messages(Events):
    """What pushing needs: messages that arrive while workers compute."""

    def __init__(self, setting: Setting, problem: Problem, period: int = 1) -> None:
        super().__init__(setting, problem, period)
        self._inbox: list[list[tuple[float, Any]]] = [[] for _ in range(setting.workers)]

    def free(self, rank: int) -> bool:
        """Whether the last message has left; until then, a worker sends no other one."""
        return bool(self._leaves[rank] <= self.now)

    def send(self, rank: int, other: int, message: Any) -> bool:
        """The message is there when its bytes are; the sender does not wait. False if it fails, which takes
        the time of the link too."""
        arrival = self.transfer(rank, other)
        if self.cluster.fails().any():
            return False
        self._inbox[other].append((arrival, message))
        return True

    def arrived(self, rank: int, senders: set[int] | None = None) -> list[Any]:
        """The messages that are there; of some senders, which they begin with, the first of each."""
        found, left, wanted = [], [], set(senders or ())
        for at, message in self._inbox[rank]:
            if at <= self.now and (senders is None or message[0] in wanted):
                found.append(message)
                if senders is not None:
                    wanted.remove(message[0])
            else:
                left.append((at, message))
        self._inbox[rank] = left
        return found


class PushGossip(Messages):
    """Sends its model to a random worker, and goes on with the mean of its own and those that came."""

    def exchange(self, rank: int) -> Iterator[float]:
        self.cluster.models[rank] = rules.push(self.cluster.models[rank], self.arrived(rank))
        other = self.peer(rank)
        if other is not None and self.free(rank):
            self.send(rank, other, self.cluster.models[rank].copy())
        yield from ()


class SGP(Messages):
    """Push-sum along the exponential graph. With `wait`, a worker waits so many seconds for the message of
    its turn."""

    def __init__(
        self, setting: Setting, problem: Problem, period: int = 1, wait: float = 0.0
    ) -> None:
        super().__init__(setting, problem, period)
        self._weights = np.ones(setting.workers)
        self._wait = wait
        self._due: list[set[int]] = [set() for _ in range(setting.workers)]

    def at(self, rank: int) -> Array:
        return rules.unbiased(self.cluster.models[rank], self._weights[rank]).astype(np.float32)

    def exchange(self, rank: int) -> Iterator[float]:
        size, step = self.setting.workers, int(self.steps[rank]) // self.period
        source, other = (
            rule(rank, step, size) for rule in (rules.exponential_source, rules.exponential_peer)
        )
        end = self.now + self._wait
        awaited = self._wait > 0 and source not in self._due[rank]
        self._due[rank].add(source)
        while not self.free(rank) and self.now < end:
            yield min(float(self._leaves[rank]), end)
        if other != rank and self.free(rank) and not self.cluster.dead(other, self.now):
            half, weight = self.cluster.models[rank] / 2, self._weights[rank] / 2
            if self.send(rank, other, (rank, half, weight)):  # what cannot be sent stays
                self.cluster.models[rank] = half
                self._weights[rank] = weight
        self._receive(rank)
        while awaited and source in self._due[rank] and self.now < end:
            if self.cluster.dead(source, self.now):
                break
            yield min(self.now + self.setting.step_s / 20, end)
            self._receive(rank)

    def _receive(self, rank: int) -> None:
        """Adds what is there; where workers wait for turns, what is due."""
        used = self.arrived(rank, self._due[rank] if self._wait else None)
        self._due[rank] -= {source for source, _, _ in used}
        models, weights = self.cluster.models, self._weights
        models[rank], weights[rank] = rules.push_sum(
            models[rank], weights[rank], [(value, weight) for _, value, weight in used]
        )

    def step(self, rank: int, gradient: Array) -> None:
        self.cluster.models[rank] -= self.cluster.rate * np.float32(self._weights[rank]) * gradient

    def judged(self) -> Any:
        return np.mean([self.at(rank) for rank in self.living()], axis=0, keepdims=True)


class EASGD(Events):
    """Moves towards a centre, which is spread over the workers, and moves the centre."""

    def __init__(
        self, setting: Setting, problem: Problem, period: int = 4, beta: float = 0.9
    ) -> None:
        super().__init__(setting, problem, period)
        self._centre = self.cluster.models[0].copy()
        self._alpha = rules.elastic_rate(beta, setting.workers)

    def exchange(self, rank: int) -> Iterator[float]:
        yield self.spread(rank)
        model = self.cluster.models[rank]
        difference = rules.elastic_difference(model, self._centre, self._alpha)
        model -= difference
        self._centre += difference
        yield self.spread(rank)

    def judged(self) -> Any:
        return self._centre[None]


class SSP(Events):
    """Gradients are added to a common model, which is spread over the workers; nobody is further ahead of the
    last than `slack` steps."""

    def __init__(self, setting: Setting, problem: Problem, slack: int = 3) -> None:
        super().__init__(setting, problem, 1)
        self._slack = slack
        self._common = self.cluster.models[0].copy()

    def before(self, rank: int) -> Iterator[float]:
        while not rules.may_begin(
            int(self.steps[rank]), self.steps[self.living()].tolist(), self._slack
        ):
            yield self.now + self.setting.step_s / 20
        yield self.spread(rank)
        self.cluster.models[rank] = self._common

    def step(self, rank: int, gradient: Array) -> None:
        self._common -= self.cluster.rate / np.float32(len(self.living())) * gradient

    def exchange(self, rank: int) -> Iterator[float]:
        yield self.spread(rank)

    def judged(self) -> Any:
        return self._common[None]


class Decoupled(Events):
    """DiLoCo that nobody waits for: the outer step takes what has arrived when a quorum has, and a grace has
    passed; workers go on with it when they see it."""

    def __init__(
        self,
        setting: Setting,
        problem: Problem,
        period: int = 20,
        quorum: int = 2,
        grace: float = 0.2,
        rate: float = 0.7,
        momentum: float = 0.9,
    ) -> None:
        super().__init__(setting, problem, period)
        self._quorum, self._grace = min(quorum, setting.workers), grace
        self._outer = {"rate": rate, "momentum": momentum}
        self._anchor = self.cluster.models[0].copy()
        self._velocity = np.zeros_like(self._anchor)
        self._based = self.cluster.models.copy()  # the anchor from which each worker has gone on
        self._arrived: list[tuple[float, Array]] = []  # when, and what

    def exchange(self, rank: int) -> Iterator[float]:
        yield self.spread(rank)
        moved = rules.outer_gradient(self._based[rank], self.cluster.models[rank])
        self._arrived.append((self.now, moved))
        yield self.now + self._grace
        self._outer_step()
        yield self.spread(rank)
        self.cluster.models[rank] = self._based[rank] = self._anchor

    def _outer_step(self) -> None:
        count = len(self._arrived)
        since = self._arrived[self._quorum - 1][0] if count >= self._quorum else np.inf
        if rules.quorum_reached(count, self._quorum, self.now - since, self._grace * 0.999):
            moved = [each for _, each in self._arrived]
            mean = rules.weighted_mean(moved, [1.0] * count)
            self._arrived.clear()
            self._anchor, self._velocity = rules.nesterov(
                self._anchor, self._velocity, mean, **self._outer
            )

    def judged(self) -> Any:
        return self._anchor[None]


def events() -> dict[str, Any]:
    """The synchronizers of this file by name."""
    return {each.__name__: each for each in (PullGossip, PushGossip, SGP, EASGD, SSP, Decoupled)}
