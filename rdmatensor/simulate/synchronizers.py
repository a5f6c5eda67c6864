# SPDX-License-Identifier: Apache-2.0
"""The synchronizers of rdmatensor.train as simulated workers follow them: its rules, over simulated links."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..train.sync import rules
from ..train.sync.periods import QSR, Period, Quality
from .cluster import Cluster, Curve, Group, Life, Setting
from .problem import Array, Problem

# An element that TopK sends is an index of four bytes and a value of one, as quantised values are.
_SPARSE, _BYTE = 5 / 4, 1 / 4


class Synchronizer:
    """Workers that each compute a step, change their own model, and exchange as subclasses say."""

    def __init__(self, setting: Setting, problem: Problem, period: int = 1) -> None:
        self.cluster = Cluster(setting, problem)
        self.setting, self.period = setting, period
        self.models, self.steps = self.cluster.models, self.cluster.steps
        self.group = Group(self.cluster, range(setting.workers))

    def run(self) -> Curve:
        """Train, and return what happened."""
        return self.cluster.run(self._life, self.judged)

    def _life(self, rank: int) -> Life:
        while True:
            yield from self.before(rank)
            gradient, loss = self.cluster.problem.gradients(
                self.at(rank)[None], self.cluster.numbers[rank]
            )
            yield self.cluster.now + self.cluster.duration(rank)
            yield from self.step(rank, gradient[0], float(loss[0]))
            self.steps[rank] += 1
            if self.steps[rank] % self.period == 0:
                yield from self.exchange(rank)

    def at(self, rank: int) -> Array:
        """Return where the worker computes its gradient."""
        found: Array = self.models[rank]
        return found

    def before(self, rank: int) -> Life:
        """Wait until a step may begin."""
        yield from ()

    def step(self, rank: int, gradient: Array, loss: float) -> Life:
        """Take the local step."""
        self.models[rank] -= self.cluster.learning_rate * gradient
        yield from ()

    def exchange(self, rank: int) -> Life:
        """Do what follows a period."""
        yield from ()

    def judged(self) -> Array:
        """Return the models whose accuracy counts."""
        found: Array = self.models[self.cluster.living()].mean(0, keepdims=True)
        return found

    def mean(self, _: Array, models: list[Array]) -> tuple[Array, float]:
        """Return the mean of all models, and the seconds that it takes."""
        found: Array = np.mean(models, axis=0)
        return found, self.cluster.inside() + self.cluster.all_reduce()


class AllReduce(Synchronizer):
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
        self.compressed = Compressed(self.cluster, compression, share, rank)

    def _act(self, ranks: Array, gradients: list[Array]) -> tuple[Array, float]:
        mean, seconds = self.compressed(ranks, gradients)
        hidden = self.setting.overlap * self.setting.step_s
        return mean, self.cluster.inside() + max(0.0, seconds - hidden)

    def step(self, rank: int, gradient: Array, loss: float) -> Life:
        mean = yield from self.group.meet(rank, gradient, self._act)
        yield from super().step(rank, mean, loss)


class Compressed:
    """The mean of workers' vectors as it arrives compressed, and the seconds that it takes."""

    def __init__(self, cluster: Cluster, how: str | None, share: float, rank: int) -> None:
        if how not in (None, "int8", "fp8", "topk", "powersgd"):
            raise ValueError(f"there is no compression {how!r}: int8, fp8, topk or powersgd")
        self._cluster, self._how, self._share, self._rank = cluster, how, share, rank
        self.errors = np.zeros_like(cluster.models)
        self._rights: dict[int, Array] = {}

    def __call__(self, ranks: Array, vectors: Sequence[Array] | Array) -> tuple[Array, float]:
        if self._how is None:
            return np.mean(vectors, axis=0), self._cluster.all_reduce()
        wanted = rules.with_error(np.array(vectors), self.errors[ranks])
        if self._how == "powersgd":
            sent, share = self._power(wanted)
            seconds = self._cluster.all_reduce(share)
        elif self._how == "topk":
            sent = np.array([self._top(vector) for vector in wanted])
            seconds = self._cluster.all_gather(self._share * _SPARSE)
        else:
            int8 = self._how == "int8"
            to, back = (rules.to_int8, rules.from_int8) if int8 else (rules.to_fp8, rules.from_fp8)
            sent = np.array([back(*to(vector)) for vector in wanted])
            seconds = self._cluster.all_reduce(_BYTE)
        self.errors[ranks] = wanted - sent
        return sent.mean(0), seconds

    def _top(self, vector: Array) -> Array:
        places = rules.top_k(vector, rules.kept(self._share, vector.size))
        values = rules.from_int8(*rules.to_int8(vector[places]))
        return rules.scattered(places, values, vector.size)

    def _power(self, wanted: Array) -> tuple[Array, float]:
        sent, elements, problem = np.empty_like(wanted), 0, self._cluster.problem
        parts = zip(problem.matrices(wanted), problem.matrices(sent), strict=True)
        for number, (matrices, results) in enumerate(parts):
            if matrices.ndim == 2:  # a bias is sent as it is
                results[:] = matrices.mean(0)
                elements += matrices.shape[1]
                continue
            if number not in self._rights:
                shape = (matrices.shape[2], min(self._rank, *matrices.shape[1:]))
                start = np.random.default_rng(number).standard_normal(shape)
                self._rights[number] = start.astype(np.float32)
            left = rules.orthonormal(rules.power_left(matrices.mean(0), self._rights[number]))
            right = self._rights[number] = rules.power_right(matrices.mean(0), left)
            results[:] = rules.power_result(left, right)
            elements += left.size + right.size
        return sent, elements / wanted.shape[1]


class LocalSGD(Synchronizer):
    """The mean of all models every `period` steps: a number, "qsr" or "quality".

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
        known: dict[str, Callable[[], Period]] = {
            "qsr": lambda: QSR(alpha, base),
            "quality": lambda: Quality(bound, base, longest),
        }
        if isinstance(period, str) and period not in known:
            raise ValueError(f"there is no period {period!r}: a number, {', '.join(known)}")
        self._period = known[period]() if isinstance(period, str) else Period(period)
        self._due = self._period.steps
        self._losses: list[list[float]] = [[] for _ in range(setting.workers)]

    def step(self, rank: int, gradient: Array, loss: float) -> Life:
        self._losses[rank].append(loss)
        yield from super().step(rank, gradient, loss)

    def exchange(self, rank: int) -> Life:
        if self.steps[rank] >= self._due:
            self.models[rank] = yield from self.group.meet(rank, self.models[rank], self._average)

    def _average(self, ranks: Array, models: list[Array]) -> tuple[Array, float]:
        # An exchange comes before the loss of its step is observed.
        for losses in zip(*(self._losses[rank][:-1] for rank in ranks), strict=True):
            self._period.observe(float(np.mean(losses)))
        self._losses = [each[-1:] for each in self._losses]
        learning_rate = float(self.cluster.learning_rate)
        self._due += self._period.following(learning_rate, lambda mean: mean)
        return self.mean(ranks, models)


class Hierarchical(LocalSGD):
    """Inside a host, synchronous SGD; between hosts, the mean of models at periods as in LocalSGD."""

    def __init__(self, setting: Setting, problem: Problem, **options: Any) -> None:
        super().__init__(setting, problem, **options)
        firsts = range(0, setting.workers, setting.host)
        ends = [min(first + setting.host, setting.workers) for first in firsts]
        self._hosts = [Group(self.cluster, range(*each)) for each in zip(firsts, ends, strict=True)]

    def step(self, rank: int, gradient: Array, loss: float) -> Life:
        group = self._hosts[rank // self.setting.host]
        mean = yield from group.meet(
            rank, gradient, lambda _, each: (np.mean(each, axis=0), self.cluster.inside())
        )
        yield from super().step(rank, mean, loss)


class DiLoCo(Synchronizer):
    """Nesterov on the mean of what workers have moved in `period` steps."""

    def __init__(
        self,
        setting: Setting,
        problem: Problem,
        period: int = 20,
        learning_rate: float = 0.7,
        momentum: float = 0.9,
        compression: str | None = None,
        share: float = 0.02,
        rank: int = 4,
    ) -> None:
        super().__init__(setting, problem, period)
        self._compressed = Compressed(self.cluster, compression, share, rank)
        self._outer = learning_rate, momentum
        self._anchor = self.models[0].copy()
        self._velocity = np.zeros_like(self._anchor)

    def exchange(self, rank: int) -> Life:
        moved = rules.outer_gradient(self._anchor, self.models[rank])
        self.models[rank] = yield from self.group.meet(rank, moved, self._outer_step)

    def _outer_step(self, ranks: Array, moved: list[Array]) -> tuple[Array, float]:
        mean, seconds = self._compressed(ranks, moved)
        self._anchor, self._velocity = rules.nesterov(
            self._anchor, self._velocity, mean, *self._outer
        )
        return self._anchor, self.cluster.inside() + seconds


class GossipPGA(Synchronizer):
    """Each pulls along the exponential graph and waits for that peer only; every `every` steps, the mean of
    all."""

    def __init__(self, setting: Setting, problem: Problem, every: int = 16) -> None:
        super().__init__(setting, problem)
        self._every = every
        self._published: dict[tuple[int, int], Array] = {}

    def _ready(self, rank: int, step: int) -> bool:
        return (rank, step) in self._published or self.cluster.dead(rank)

    def exchange(self, rank: int) -> Life:
        step, models, living = int(self.steps[rank]), self.models, self.cluster.living().tolist()
        if rules.averages_globally(step, self._every):
            models[rank] = yield from self.group.meet(rank, models[rank], self.mean)
            return
        self._published[rank, step] = models[rank].copy()
        self._published.pop((rank, step - self._every), None)
        other = living[rules.exponential_peer(living.index(rank), step, len(living))]
        yield self._ready, other, step
        if (other, step) in self._published:
            yield self.cluster.transfer(other, rank)
            if not self.cluster.fails(rank):
                models[rank] = rules.pull(models[rank], self._published[other, step])


class PullGossip(Synchronizer):
    """Reads a random worker's model and goes on with the mean of both."""

    def peer(self, rank: int) -> int | None:
        """Return a random other worker; None if it is dead."""
        if self.setting.workers == 1:
            return None
        other = rules.random_peer(self.cluster.numbers[rank], rank, self.setting.workers)
        return None if self.cluster.dead(other) else other

    def exchange(self, rank: int) -> Life:
        other = self.peer(rank)
        if other is not None:
            read = self.models[other].copy()  # as it is when the read begins
            yield self.cluster.transfer(other, rank)
            if not self.cluster.fails(rank):
                self.models[rank] = rules.pull(self.models[rank], read)


class Messages(PullGossip):
    """What pushing needs: messages that arrive while workers compute."""

    def __init__(self, setting: Setting, problem: Problem, period: int = 1) -> None:
        super().__init__(setting, problem, period)
        self.inbox: list[list[tuple[float, Any]]] = [[] for _ in range(setting.workers)]

    def free(self, rank: int) -> bool:
        """Return whether the last message has left; until then, a worker sends no other one."""
        return bool(self.cluster.leaves[rank] <= self.cluster.now)

    def send(self, rank: int, other: int, message: Any) -> bool:
        """Send a message, which is there when its bytes are. False if it fails, which takes as long."""
        arrival = self.cluster.transfer(rank, other)
        if self.cluster.fails(rank):
            return False
        self.inbox[other].append((arrival, message))
        return True

    def arrived(self, rank: int, senders: set[int] | None = None) -> list[Any]:
        """Return the messages that are there; of some senders, which they begin with, the first of each."""
        found, left, wanted = [], [], set(senders or ())
        for at, message in self.inbox[rank]:
            if at <= self.cluster.now and (senders is None or message[0] in wanted):
                found.append(message)
                if senders is not None:
                    wanted.remove(message[0])
            else:
                left.append((at, message))
        self.inbox[rank] = left
        return found


class PushGossip(Messages):
    """Sends its model to a random worker, and goes on with the mean of its own and those that came."""

    def exchange(self, rank: int) -> Life:
        self.models[rank] = rules.push(self.models[rank], self.arrived(rank))
        other = self.peer(rank)
        if other is not None and self.free(rank):
            self.send(rank, other, self.models[rank].copy())
        yield from ()


class SGP(Messages):
    """Push-sum along the exponential graph. With `wait`, a worker waits so many seconds for the message of
    its turn."""

    def __init__(
        self, setting: Setting, problem: Problem, period: int = 1, wait: float = 0.0
    ) -> None:
        super().__init__(setting, problem, period)
        self.weights = np.ones(setting.workers)
        self._wait = wait
        self._due: list[set[int]] = [set() for _ in range(setting.workers)]

    def at(self, rank: int) -> Array:
        return rules.unbiased(self.models[rank], self.weights[rank]).astype(np.float32)

    def exchange(self, rank: int) -> Life:
        size, step = self.setting.workers, int(self.steps[rank]) // self.period
        source = rules.exponential_source(rank, step, size)
        other = rules.exponential_peer(rank, step, size)
        end = self.cluster.now + self._wait
        awaited = self._wait > 0 and source not in self._due[rank]
        self._due[rank].add(source)
        while not self.free(rank) and self.cluster.now < end:
            yield min(float(self.cluster.leaves[rank]), end)
        if other != rank and self.free(rank) and not self.cluster.dead(other):
            half, weight = self.models[rank] / 2, self.weights[rank] / 2
            if self.send(rank, other, (rank, half, weight)):  # what cannot be sent stays
                self.models[rank], self.weights[rank] = half, weight
        self._receive(rank)
        while awaited and source in self._due[rank] and self.cluster.now < end:
            if self.cluster.dead(source):
                break
            yield min(self.cluster.now + self.setting.step_s / 20, end)
            self._receive(rank)

    def _receive(self, rank: int) -> None:
        """Add what is there; where workers wait for turns, what is due."""
        used = self.arrived(rank, self._due[rank] if self._wait else None)
        self._due[rank] -= {source for source, _, _ in used}
        self.models[rank], self.weights[rank] = rules.push_sum(
            self.models[rank], self.weights[rank], [(value, weight) for _, value, weight in used]
        )

    def step(self, rank: int, gradient: Array, loss: float) -> Life:
        yield from super().step(rank, np.float32(self.weights[rank]) * gradient, loss)

    def judged(self) -> Array:
        living = self.cluster.living()
        found: Array = np.mean([self.at(rank) for rank in living], axis=0, keepdims=True)
        return found


class EASGD(Synchronizer):
    """Moves towards a centre, which is spread over the workers, and moves the centre."""

    def __init__(
        self, setting: Setting, problem: Problem, period: int = 4, beta: float = 0.9
    ) -> None:
        super().__init__(setting, problem, period)
        self._centre = self.models[0].copy()
        self._alpha = rules.elastic_rate(beta, setting.workers)

    def exchange(self, rank: int) -> Life:
        yield self.cluster.spread()
        difference = rules.elastic_difference(self.models[rank], self._centre, self._alpha)
        self.models[rank] -= difference
        self._centre += difference
        yield self.cluster.spread()

    def judged(self) -> Array:
        found: Array = self._centre[None]
        return found


class SSP(Synchronizer):
    """Gradients are added to a common model, which is spread over the workers; nobody is further ahead of the
    last than `slack` steps."""

    def __init__(self, setting: Setting, problem: Problem, slack: int = 3) -> None:
        super().__init__(setting, problem)
        self._slack = slack
        self._common = self.models[0].copy()

    def _may_begin(self, clock: int) -> bool:
        return rules.may_begin(clock, self.steps[self.cluster.living()].tolist(), self._slack)

    def before(self, rank: int) -> Life:
        yield self._may_begin, int(self.steps[rank])
        yield self.cluster.spread()
        self.models[rank] = self._common

    def step(self, rank: int, gradient: Array, loss: float) -> Life:
        members = np.float32(len(self.cluster.living()))
        self._common -= self.cluster.learning_rate / members * gradient
        yield from ()

    def exchange(self, rank: int) -> Life:
        yield self.cluster.spread()

    def judged(self) -> Array:
        found: Array = self._common[None]
        return found


class Decoupled(Synchronizer):
    """DiLoCo that nobody waits for: the outer step takes what has arrived when a quorum has, and a grace has
    passed; workers go on with it when they see it."""

    def __init__(
        self,
        setting: Setting,
        problem: Problem,
        period: int = 20,
        quorum: int = 2,
        grace: float = 0.2,
        learning_rate: float = 0.7,
        momentum: float = 0.9,
    ) -> None:
        super().__init__(setting, problem, period)
        self._quorum, self._grace = min(quorum, setting.workers), grace
        self._outer = learning_rate, momentum
        self._anchor = self.models[0].copy()
        self._velocity = np.zeros_like(self._anchor)
        self._based = self.models.copy()  # the anchor from which each worker has gone on
        self._arrived: list[tuple[float, Array]] = []  # when, and what

    def exchange(self, rank: int) -> Life:
        yield self.cluster.spread()
        moved = rules.outer_gradient(self._based[rank], self.models[rank])
        self._arrived.append((self.cluster.now, moved))
        yield self.cluster.now + self._grace
        self._outer_step()
        yield self.cluster.spread()
        self.models[rank] = self._based[rank] = self._anchor

    def _outer_step(self) -> None:
        count = len(self._arrived)
        since = self._arrived[self._quorum - 1][0] if count >= self._quorum else np.inf
        waited = self.cluster.now - since
        if rules.quorum_reached(count, self._quorum, waited, self._grace * 0.999):
            mean = rules.weighted_mean([each for _, each in self._arrived], [1.0] * count)
            self._arrived.clear()
            self._anchor, self._velocity = rules.nesterov(
                self._anchor, self._velocity, mean, *self._outer
            )

    def judged(self) -> Array:
        found: Array = self._anchor[None]
        return found


SYNCHRONIZERS: dict[str, Callable[..., Synchronizer]] = {
    each.__name__: each
    for each in (
        *(AllReduce, LocalSGD, Hierarchical, DiLoCo, GossipPGA),
        *(PullGossip, PushGossip, SGP, EASGD, SSP, Decoupled),
    )
}
