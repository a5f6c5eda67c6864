# SPDX-License-Identifier: Apache-2.0
"""Simulated synchronizers whose workers wait for others: each takes its steps together with all.

A worker's clock says when it can begin its next step. An exchange moves the clocks of those who wait for each
other to the last of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..train.sync import rules
from ..train.sync.periods import QSR, AdaComm, Period, Quality
from .cluster import Cluster, Curve, Setting
from .problem import Array, Problem

# An element that TopK sends is an index of four bytes and a value of one, as quantised values are.
_SPARSE, _BYTE = 5 / 4, 1 / 4


class Lockstep:
    """All workers take a step; then `exchange` changes models and clocks."""

    def __init__(self, setting: Setting, problem: Problem) -> None:
        self.cluster = Cluster(setting, problem)
        self.setting = setting
        self.alive = np.arange(setting.workers)
        self.clock = np.zeros(setting.workers)

    def run(self) -> Curve:
        """Trains, and returns what happened."""
        taken, budget = 0, self.setting.steps * self.setting.workers
        step = 0
        while taken < budget and len(self.alive):
            step += 1
            self._bury()
            models = self.cluster.models[self.alive]
            gradients, losses = self.cluster.problem.gradients(
                self.at(models), self.cluster.numbers
            )
            self.clock[self.alive] += self.cluster.durations(self.alive)
            self.step(step, models, gradients, losses)
            self.exchange(step, losses)
            taken += len(self.alive)
            self.cluster.record(taken, self.clock[self.alive].mean(), self.judged)
        return self.cluster.curve

    def _bury(self) -> None:
        """Workers that have died are left out; the others need a new group."""
        gone = self.cluster.dead(self.alive, self.clock[self.alive])
        if gone.any():
            self.alive = self.alive[~gone]
            self.together(self.setting.restart_s)

    def at(self, models: Array) -> Array:
        """Where gradients are computed."""
        return models

    def step(self, step: int, models: Array, gradients: Array, losses: Array) -> None:
        """The local step."""
        self.cluster.models[self.alive] = models - self.cluster.rate * gradients

    def exchange(self, step: int, losses: Array) -> None:
        """What follows the step."""

    def judged(self) -> Any:
        """The models whose accuracy counts."""
        return self.cluster.models[self.alive].mean(0, keepdims=True)

    def together(self, seconds: float) -> None:
        """All wait for the last one, and then for something that takes as long."""
        if len(self.alive):
            self.clock[self.alive] = self.clock[self.alive].max() + seconds


class AllReduce(Lockstep):
    """Synchronous SGD: the mean gradient. `compression` is None, "int8", "fp8", "topk" or "powersgd"."""

    def __init__(
        self,
        setting: Setting,
        problem: Problem,
        compression: str | None = None,
        share: float = 0.02,
        rank: int = 4,
    ) -> None:
        super().__init__(setting, problem)
        self._mean = Mean(self.cluster, compression, share, rank)

    def step(self, step: int, models: Array, gradients: Array, losses: Array) -> None:
        mean, seconds = self._mean(gradients, self.alive)
        self.cluster.models[self.alive] = models - self.cluster.rate * mean
        hidden = self.setting.overlap * self.setting.step_s
        self.together(self.cluster.inside() + max(0.0, seconds - hidden))

    def judged(self) -> Any:
        return self.cluster.models[self.alive[:1]]


class Mean:
    """The mean of workers' vectors as it arrives compressed, and the seconds that it takes."""

    def __init__(self, cluster: Cluster, compression: str | None, share: float, rank: int) -> None:
        if compression not in (None, "int8", "fp8", "topk", "powersgd"):
            raise ValueError(
                f"there is no compression {compression!r}: int8, fp8, topk or powersgd"
            )
        self._cluster, self._how, self._share, self._rank = cluster, compression, share, rank
        self._errors = np.zeros_like(cluster.models)
        self._rights: dict[int, Array] = {}

    def __call__(self, vectors: Array, alive: Array) -> tuple[Array, float]:
        if self._how is None:
            return vectors.mean(0), self._cluster.all_reduce()
        wanted = rules.with_error(vectors, self._errors[alive])
        if self._how == "powersgd":
            sent, share = self._power(wanted)
            seconds = self._cluster.all_reduce(share)
        elif self._how == "topk":
            count = rules.kept(self._share, vectors.shape[1])
            sent = np.zeros_like(wanted)
            for i, vector in enumerate(wanted):
                places = rules.top_k(vector, count)
                values = rules.from_int8(*rules.to_int8(vector[places]))
                sent[i] = rules.scattered(places, values, vector.size)
            seconds = self._cluster.all_gather(self._share * _SPARSE, self._cluster.setting.hosts)
        else:
            to, back = (
                (rules.to_int8, rules.from_int8)
                if self._how == "int8"
                else (rules.to_fp8, rules.from_fp8)
            )
            sent = np.array([back(*to(vector)) for vector in wanted])
            seconds = self._cluster.all_reduce(_BYTE)
        self._errors[alive] = wanted - sent
        return sent.mean(0), seconds

    def _power(self, wanted: Array) -> tuple[Array, float]:
        sent = np.empty_like(wanted)
        elements = 0
        parts = zip(
            self._cluster.problem.matrices(wanted),
            self._cluster.problem.matrices(sent),
            strict=True,
        )
        for number, (matrices, results) in enumerate(parts):
            if matrices.ndim == 2:  # a bias is sent as it is
                results[:] = matrices.mean(0)
                elements += matrices.shape[1]
                continue
            if number not in self._rights:
                generator = np.random.default_rng(number)
                shape = (matrices.shape[2], min(self._rank, *matrices.shape[1:]))
                self._rights[number] = generator.standard_normal(shape).astype(np.float32)
            right = self._rights[number]
            left = rules.orthonormal(rules.power_left(matrices.mean(0), right))
            right = rules.power_right(matrices.mean(0), left)
            self._rights[number] = right
            results[:] = rules.power_result(left, right)
            elements += left.size + right.size
        return sent, elements / wanted.shape[1]


class LocalSGD(Lockstep):
    """The mean of all models every `period` steps: a number, "qsr", "adacomm" or "quality".

    `alpha` is QSR's, `bound` is the quality's; both begin at `base`.
    """

    def __init__(
        self,
        setting: Setting,
        problem: Problem,
        period: int | str = 8,
        base: int = 2,
        alpha: float = 1.0,
        bound: float = 0.02,
        longest: int = 64,
    ) -> None:
        super().__init__(setting, problem)
        rules_of: dict[str, Callable[[], Period]] = {
            "qsr": lambda: QSR(alpha, base),
            "adacomm": lambda: AdaComm(base),
            "quality": lambda: Quality(bound, base, longest),
        }
        if isinstance(period, str) and period not in rules_of:
            raise ValueError(f"there is no period {period!r}: a number, qsr, adacomm or quality")
        self._period = rules_of[period]() if isinstance(period, str) else Period(period)
        self._due = self._period.steps
        self.cluster.curve.notes["periods"] = self._periods = [self._due]

    def exchange(self, step: int, losses: Array) -> None:
        if step >= self._due:
            self._average()
            self._due = step + self._period.following(float(self.cluster.rate), lambda mean: mean)
            self._periods.append(self._period.steps)
        self._period.observe(float(losses.mean()))

    def _average(self) -> None:
        self.cluster.models[self.alive] = self.cluster.models[self.alive].mean(0)
        self.together(self.cluster.inside() + self.cluster.all_reduce())


class Hierarchical(LocalSGD):
    """Inside a host, synchronous SGD; between hosts, the mean of models at periods as in LocalSGD."""

    def step(self, step: int, models: Array, gradients: Array, losses: Array) -> None:
        hosts = self.alive // self.setting.host
        for host in np.unique(hosts):
            here = self.alive[hosts == host]
            self.cluster.models[here] -= self.cluster.rate * gradients[hosts == host].mean(0)
            self.clock[here] = self.clock[here].max() + self.cluster.inside()


class DiLoCo(Lockstep):
    """Nesterov on the mean of what workers have moved in `period` steps."""

    def __init__(
        self,
        setting: Setting,
        problem: Problem,
        period: int = 20,
        rate: float = 0.7,
        momentum: float = 0.9,
        compression: str | None = None,
        share: float = 0.02,
        rank: int = 4,
    ) -> None:
        super().__init__(setting, problem)
        self._mean = Mean(self.cluster, compression, share, rank)
        self._period, self._outer = period, {"rate": rate, "momentum": momentum}
        self._anchor = self.cluster.models[0].copy()
        self._velocity = np.zeros_like(self._anchor)

    def exchange(self, step: int, losses: Array) -> None:
        if step % self._period:
            return
        moved = rules.outer_gradient(self._anchor, self.cluster.models[self.alive])
        mean, seconds = self._mean(moved, self.alive)
        self._anchor, self._velocity = rules.nesterov(
            self._anchor, self._velocity, mean, **self._outer
        )
        self.cluster.models[self.alive] = self._anchor
        self.together(self.cluster.inside() + seconds)


class GossipPGA(Lockstep):
    """Each pulls along the exponential graph and waits for that peer only; every `every` steps, the mean of
    all."""

    def __init__(self, setting: Setting, problem: Problem, every: int = 16) -> None:
        super().__init__(setting, problem)
        self._every = every

    def exchange(self, step: int, losses: Array) -> None:
        models, count = self.cluster.models, len(self.alive)
        if rules.averages_globally(step, self._every):
            models[self.alive] = models[self.alive].mean(0)
            self.together(self.cluster.inside() + self.cluster.all_reduce())
            return
        peers = [rules.exponential_peer(rank, step, count) for rank in range(count)]
        mine, theirs = models[self.alive], models[self.alive[peers]]
        failed = self.cluster.fails(count)[:, None]
        models[self.alive] = np.where(failed, mine, rules.pull(mine, theirs))
        clock = self.clock[self.alive]
        seconds = self.setting.model_bytes / self.setting.bandwidth + self.setting.latency_s
        self.clock[self.alive] = np.maximum(clock, clock[peers]) + seconds
        self.cluster.sent += self.setting.model_bytes * count


def lockstep() -> dict[str, Any]:
    """The synchronizers of this file by name."""
    return {each.__name__: each for each in (AllReduce, LocalSGD, Hierarchical, DiLoCo, GossipPGA)}
