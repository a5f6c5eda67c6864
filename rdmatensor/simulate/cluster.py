# SPDX-License-Identifier: Apache-2.0
"""The simulated cluster: how long steps and transfers take, who is slow or dies, and what is recorded."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .problem import Array, Problem

# A curve has so many points at most, and each is the accuracy of so many workers' models at most.
_POINTS, _JUDGES = 100, 8


@dataclass(frozen=True)
class Setting:
    """One cluster. Times are in seconds, rates in bytes per second."""

    workers: int = 8
    host: int = 1
    """Workers on one host, which share its link."""
    step_s: float = 0.1
    jitter: float = 0.1
    """The standard deviation of the logarithm of a step's time."""
    slow: int = 0
    """How many workers are slow, and by which factor."""
    slowness: float = 2.0
    deaths: tuple[float, ...] = ()
    """When workers die; the last rank first."""
    loss: float = 0.0
    """The share of the exchanges of gossip that fail. Transports are reliable, so none is lost unnoticed: it
    stands for one that ends with its peer's time-out. Both go on with what they have."""
    restart_s: float = 5.0
    """How long synchronous training stands still when a worker dies, until there is a new group."""
    bandwidth: float = 1.25e9
    inside_bandwidth: float = 10e9
    latency_s: float = 50e-6
    model_bytes: float = 46.8e6
    overlap: float = 0.5
    """The share of a step that the all-reduce of gradients can hide behind."""
    rate: float = 0.4
    decay: bool = False
    """Whether the learning rate falls to 0, as half a cosine."""
    steps: int = 300
    """How many steps each worker takes, on average."""
    seed: int = 0

    @property
    def hosts(self) -> int:
        return math.ceil(self.workers / self.host)


@dataclass
class Curve:
    """Accuracy over time, bytes that a host has sent, and steps of a worker."""

    seconds: list[float] = field(default_factory=list)
    nbytes: list[float] = field(default_factory=list)
    steps: list[float] = field(default_factory=list)
    accuracy: list[float] = field(default_factory=list)
    notes: dict[str, Any] = field(default_factory=dict)

    def reached(self, target: float) -> tuple[float, float] | None:
        """Seconds and bytes when two points in a row are at the target or above; None if never."""
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
    """What all synchronizers share: workers' speeds, links, the count of bytes, and the curve."""

    def __init__(self, setting: Setting, problem: Problem) -> None:
        self.setting, self.problem = setting, problem
        self.size = setting.workers
        self.numbers = np.random.default_rng(setting.seed)
        self._speeds = np.random.default_rng(setting.seed + 1000)
        self._losses = np.random.default_rng(setting.seed + 2000)
        self._factors = np.ones(self.size)
        self._factors[: setting.slow] = setting.slowness
        self._death = np.full(self.size, np.inf)
        if setting.deaths:
            self._death[-len(setting.deaths) :] = setting.deaths[::-1]
        model = problem.begin(setting.seed)
        self.models = np.repeat(model[None], self.size, 0)
        self.rate = np.float32(setting.rate)
        self.sent = 0.0
        self.curve = Curve()
        self._budget = setting.steps * self.size
        self._every = max(1, self._budget // _POINTS)
        self._next = 0

    def durations(self, ranks: Array) -> Array:
        """How long the next step of each of the workers takes."""
        jitter = self._speeds.lognormal(0.0, self.setting.jitter, len(ranks))
        found: Array = self.setting.step_s * self._factors[ranks] * jitter
        return found

    def dead(self, rank: Any, now: Any) -> Any:
        """Whether a worker is dead; takes arrays too."""
        return self._death[rank] <= now

    def fails(self, count: int = 1) -> Array:
        """Whether each of so many exchanges of gossip fails."""
        found: Array = self._losses.random(count) < self.setting.loss
        return found

    def record(self, taken: int, now: float, judged: Callable[[], Array]) -> None:
        """Adds a point if it is time, and lets the rate decay. `taken` counts the steps of all workers;
        `judged` gives the models, of which some are tested."""
        if self.setting.decay:
            share = 0.5 * (1 + math.cos(math.pi * min(taken / self._budget, 1.0)))
            self.rate = np.float32(self.setting.rate * share)
        if taken < self._next:
            return
        self._next += self._every
        models = judged()
        models = models[:: max(1, len(models) // _JUDGES)]
        self.curve.seconds.append(float(now))
        self.curve.nbytes.append(self.sent / self.setting.hosts)
        self.curve.steps.append(taken / self.size)
        finite = np.nan_to_num(models, nan=0.0, posinf=0.0, neginf=0.0)
        self.curve.accuracy.append(self.problem.accuracy(finite))

    # ---- what collective operations take: (n - 1) / n of the bytes twice around a ring, and a tree's latency

    def all_reduce(self, share: float = 1.0, members: int | None = None) -> float:
        """Seconds of an all-reduce of a share of the model, among hosts. Counts its bytes."""
        hosts = self.setting.hosts if members is None else members
        each = 2 * (hosts - 1) / hosts * share * self.setting.model_bytes
        self.sent += each * hosts
        return each / self.setting.bandwidth + 2 * hops(hosts) * self.setting.latency_s

    def all_gather(self, share: float, members: int) -> float:
        """Seconds of gathering every worker's `share` of the bytes of a model. Counts them."""
        each = (members - 1) * share * self.setting.model_bytes
        self.sent += each * members
        return each / self.setting.bandwidth + hops(members) * self.setting.latency_s

    def inside(self) -> float:
        """Seconds of an all-reduce of the model inside hosts, which the network does not see."""
        local = min(self.setting.host, self.size)
        if local == 1:
            return 0.0
        return 2 * (local - 1) / local * self.setting.model_bytes / self.setting.inside_bandwidth


def hops(count: int) -> int:
    """The depth of a tree of `count` members."""
    return max(0, math.ceil(math.log2(count))) if count > 0 else 0
