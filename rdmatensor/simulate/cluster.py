# SPDX-License-Identifier: Apache-2.0
"""The simulated cluster: an event clock, workers that are slow or die, links, groups, and the curve."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..train.sync import rules
from .problem import Array, Problem
from .setting import Setting

# A curve has so many points at most, and each is the accuracy of so many workers' models at most.
_POINTS, _JUDGES = 100, 8

# What a worker does. It yields the time at which it goes on, or a function that tells whether it may, and the
# function's arguments.
Wait = float | tuple[Any, ...]
Life = Generator[Wait, None, Any]
Act = Callable[[Array, list[Any]], tuple[Any, float]]


@dataclass
class Curve:
    """Accuracy over time, bytes that a host has sent, and steps of a worker."""

    seconds: list[float] = field(default_factory=list)
    nbytes: list[float] = field(default_factory=list)
    steps: list[float] = field(default_factory=list)
    accuracy: list[float] = field(default_factory=list)

    def reached(self, target: float) -> tuple[float, float] | None:
        """Return seconds and bytes when two points in a row are at the target or above; None if never."""
        for i in range(len(self.accuracy) - 1):
            if min(self.accuracy[i : i + 2]) >= target:
                return self.seconds[i], self.nbytes[i]
        return None

    @property
    def final(self) -> float:
        """The mean of the last tenth of the accuracies."""
        last = max(1, len(self.accuracy) // 10)
        return float(np.mean(self.accuracy[-last:]))


class Cluster:
    """Workers that each live by the event clock, and the links between them."""

    def __init__(self, setting: Setting, problem: Problem) -> None:
        self.setting, self.problem, self.size = setting, problem, setting.workers
        # Of each worker, so that what it draws does not depend on the order in which workers run.
        self.numbers = [np.random.default_rng([setting.seed, rank]) for rank in range(self.size)]
        self._factors = np.ones(self.size)
        self._factors[: setting.slow] = setting.slowness
        self._death = np.full(self.size, np.inf)
        if setting.deaths:
            self._death[-len(setting.deaths) :] = setting.deaths[::-1]
        self.models = np.repeat(problem.begin(setting.seed)[None], self.size, 0)
        self.learning_rate = np.float32(setting.learning_rate)
        self.now, self.sent, self.curve = 0.0, 0.0, Curve()
        self.steps = np.zeros(self.size, int)
        self.leaves = np.zeros(self.size)  # when each link is free to send, and to receive
        self._arrives = np.zeros(self.size)
        self._next = 0

    def run(self, life: Callable[[int], Life], judged: Callable[[], Array]) -> Curve:
        """Train until all workers together have taken their steps. `judged` gives the models that count."""
        lives = [life(rank) for rank in range(self.size)]
        due = [(0.0, rank) for rank in range(self.size)]
        waiting: dict[tuple[Any, ...], list[int]] = {}
        while due and self.steps.sum() < self.setting.steps * self.size:
            self.now, rank = heapq.heappop(due)
            if not self.dead(rank):
                wait = next(lives[rank])
                if isinstance(wait, tuple):
                    waiting.setdefault(wait, []).append(rank)
                else:
                    heapq.heappush(due, (max(wait, self.now), rank))
            for wait in [each for each in waiting if each[0](*each[1:])]:
                for each in waiting.pop(wait):
                    heapq.heappush(due, (self.now, each))
            self._record(judged)
        return self.curve

    def duration(self, rank: int) -> float:
        """Return how long the next step of a worker takes."""
        jitter = self.numbers[rank].lognormal(0.0, self.setting.jitter)
        return float(self.setting.step_s * self._factors[rank] * jitter)

    def dead(self, rank: int) -> bool:
        """Return whether a worker has died."""
        return bool(self._death[rank] <= self.now)

    def living(self) -> Array:
        """Return the ranks of those who live."""
        return np.flatnonzero(self._death > self.now)

    def fails(self, rank: int) -> bool:
        """Return whether an exchange of gossip fails."""
        return bool(self.numbers[rank].random() < self.setting.loss)

    def transfer(self, source: int, target: int) -> float:
        """Return when the bytes of a model have arrived, after those that use the same links."""
        self.sent += self.setting.model_bytes
        begin = max(self.now, self.leaves[source], self._arrives[target])
        end = begin + self.setting.model_bytes / self.setting.bandwidth
        self.leaves[source] = self._arrives[target] = end
        return float(end + self.setting.latency_s)

    def spread(self) -> float:
        """Return when a model has arrived that is spread over all workers, to or from one of them."""
        nbytes = (self.size - 1) / self.size * self.setting.model_bytes
        self.sent += nbytes
        return self.now + nbytes / self.setting.bandwidth + self.setting.latency_s

    def all_reduce(self, share: float = 1.0) -> float:
        """Return the seconds of an all-reduce of a share of the model, among hosts. Counts its bytes."""
        hosts = self.setting.hosts
        return self._collective(2 * (hosts - 1) / hosts * share, 2)

    def all_gather(self, share: float) -> float:
        """Return the seconds of gathering every host's `share` of the bytes of a model. Counts them."""
        return self._collective((self.setting.hosts - 1) * share, 1)

    def _collective(self, share: float, phases: int) -> float:
        """Let each host send a share of the model around a ring; each phase takes a tree's latency."""
        hosts, nbytes = self.setting.hosts, share * self.setting.model_bytes
        self.sent += nbytes * hosts
        latency = phases * rules.hops(hosts) * self.setting.latency_s if hosts > 1 else 0.0
        return nbytes / self.setting.bandwidth + latency

    def inside(self) -> float:
        """Return the seconds of an all-reduce of the model inside hosts, which the network does not see."""
        local = min(self.setting.host, self.size)
        return 2 * (local - 1) / local * self.setting.model_bytes / self.setting.inside_bandwidth

    def _record(self, judged: Callable[[], Array]) -> None:
        """Add a point if it is time, and let the learning rate decay."""
        taken, budget = int(self.steps.sum()), self.setting.steps * self.size
        if self.setting.decay:
            share = 0.5 * (1 + math.cos(math.pi * min(taken / budget, 1.0)))
            self.learning_rate = np.float32(self.setting.learning_rate * share)
        if taken < self._next or not len(self.living()):
            return
        self._next += max(1, budget // _POINTS)
        models = judged()
        models = models[:: max(1, len(models) // _JUDGES)]
        self.curve.seconds.append(float(self.now))
        self.curve.nbytes.append(self.sent / self.setting.hosts)
        self.curve.steps.append(taken / self.size)
        finite = np.nan_to_num(models, nan=0.0, posinf=0.0, neginf=0.0)
        self.curve.accuracy.append(self.problem.accuracy(finite))


class Group:
    """Workers that wait for each other. Those that have died are left out, for which all stand still once."""

    def __init__(self, cluster: Cluster, ranks: range) -> None:
        self.cluster, self.ranks = cluster, ranks
        self._count, self._meeting = len(ranks), _Meeting(self)

    def meet(self, rank: int, value: Any, act: Act) -> Life:
        """Bring a value, and return what `act` makes of all of them once all have come.

        It gets the ranks and the values, and returns the result and the seconds that it takes.
        """
        meeting = self._meeting
        meeting.values[rank] = value
        yield (meeting.complete,)
        if meeting is self._meeting:  # the first that goes on acts for all
            self._meeting = _Meeting(self)
            ranks = np.array(sorted(meeting.values))
            meeting.result, seconds = act(ranks, [meeting.values[each] for each in ranks])
            before = self._count
            self._count = sum(not self.cluster.dead(each) for each in self.ranks)
            restart = self.cluster.setting.restart_s if self._count < before else 0.0
            meeting.end = self.cluster.now + (seconds + restart)
        yield meeting.end
        return meeting.result


class _Meeting:
    def __init__(self, group: Group) -> None:
        self._group = group
        self.values: dict[int, Any] = {}
        self.result: Any = None
        self.end = 0.0

    def complete(self) -> bool:
        return all(
            rank in self.values or self._group.cluster.dead(rank) for rank in self._group.ranks
        )
