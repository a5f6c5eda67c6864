# SPDX-License-Identifier: Apache-2.0
"""The synchronizers of rdmatensor.train as simulated workers follow them: its rules, over simulated links.

Fields with a default are the arguments that the command takes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..train.sync import rules
from ..train.sync.periods import QSR, Period, Quality
from .cluster import Cluster, Curve, Group, Life
from .problem import Array, Problem
from .setting import Setting

# An element that TopK sends is an index of four bytes and a value of one, as quantised values are.
_SPARSE, _BYTE = 5 / 4, 1 / 4


@dataclass(eq=False)
class Synchronizer:
    """Workers that each compute a step, change their own model, and exchange as subclasses say."""

    setting: Setting
    problem: Problem
    period = 1  # an argument where a subclass has such a field

    def __post_init__(self) -> None:
        self.cluster = Cluster(self.setting, self.problem)
        self.models, self.steps = self.cluster.models, self.cluster.steps
        self.group = Group(self.cluster, range(self.setting.workers))
        self._begin()

    def run(self) -> Curve:
        """Train, and return what happened."""
        return self.cluster.run(self._life, self.judged)

    def judged(self) -> Array:
        """Return the models whose accuracy counts."""
        return np.asarray(self.models[self.cluster.living()].mean(0, keepdims=True))

    def _begin(self) -> None:
        """Prepare what training needs besides models."""

    def _life(self, rank: int) -> Life:
        while True:
            yield from self._before(rank) or ()
            gradient, loss = self.problem.gradients(
                self._at(rank)[None], self.cluster.numbers[rank]
            )
            yield self.cluster.now + self.cluster.duration(rank)
            yield from self._step(rank, gradient[0], float(loss[0])) or ()
            self.steps[rank] += 1
            if self._is_due(rank):
                yield from self._exchange(rank) or ()

    def _at(self, rank: int) -> Any:
        """Return where the worker computes its gradient."""
        return self.models[rank]

    def _before(self, rank: int) -> Life | None:
        """Wait until a step may begin."""

    def _step(self, rank: int, gradient: Array, loss: float) -> Life | None:
        """Take the local step."""
        self.models[rank] -= self.cluster.learning_rate * gradient
        return None

    def _is_due(self, rank: int) -> bool:
        """Return whether to exchange after this step."""
        return bool(self.steps[rank] % self.period == 0)

    def _exchange(self, rank: int) -> Life | None:
        """Do what follows a period."""

    def _mean(self, _: Array, models: list[Array]) -> tuple[Array, float]:
        """Return the mean of all models, and the seconds that it takes."""
        return np.mean(models, axis=0), self.cluster.inside() + self.cluster.all_reduce()


class Common(Synchronizer):
    """A synchronizer with a common model, which counts, spread over the workers."""

    def _begin(self) -> None:
        self.common: Array = self.models[0].copy()

    def judged(self) -> Array:
        """Return the common model."""
        return self.common.reshape(1, -1)


class Compressed:
    """The mean of workers' vectors as it arrives compressed, and the seconds that it takes."""

    def __init__(self, cluster: Cluster, how: str | None, share: float, rank: int) -> None:
        if how not in (None, "int8", "fp8", "topk", "powersgd"):
            raise ValueError(f"there is no compression {how!r}: int8, fp8, topk or powersgd")
        self._cluster, self._how, self._share, self._rank = cluster, how, share, rank
        self.errors = np.zeros_like(cluster.models)
        self._rights: dict[int, Array] = {}

    def __call__(self, ranks: Array, vectors: Sequence[Array] | Array) -> tuple[Array, float]:
        """Return the mean of the vectors of these workers, and keep what was not sent."""
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
            to, back = (getattr(rules, f"{way}_{self._how}") for way in ("to", "from"))
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
            mean = matrices.mean(0)
            if mean.ndim == 1:  # a bias is sent as it is
                results[:] = mean
                elements += mean.size
                continue
            if number not in self._rights:
                shape = mean.shape[1], min(self._rank, *mean.shape)
                start = np.random.default_rng(number).standard_normal(shape)
                self._rights[number] = start.astype(np.float32)
            left = rules.orthonormal(rules.power_left(mean, self._rights[number]))
            right = self._rights[number] = rules.power_right(mean, left)
            results[:] = rules.power_result(left, right)
            elements += left.size + right.size
        return sent, elements / wanted.shape[1]


@dataclass(eq=False)
class AllReduce(Synchronizer):
    """Synchronous SGD: the mean gradient. `compression` is None, "int8", "fp8", "topk" or "powersgd"."""

    compression: str | None = None
    share: float = 0.02
    rank: int = 4

    def _begin(self) -> None:
        self.compressed = Compressed(self.cluster, self.compression, self.share, self.rank)

    def _act(self, ranks: Array, gradients: list[Array]) -> tuple[Array, float]:
        mean, seconds = self.compressed(ranks, gradients)
        hidden = self.setting.overlap * self.setting.step_s
        return mean, self.cluster.inside() + max(0.0, seconds - hidden)

    def _step(self, rank: int, gradient: Array, loss: float) -> Life:
        mean = yield from self.group.meet(rank, gradient, self._act)
        super()._step(rank, mean, loss)


@dataclass(eq=False)
class LocalSGD(Synchronizer):
    """The mean of all models every `period` steps: a number, "qsr" or "quality".

    `alpha` is QSR's, `bound` is the quality's; both begin at `base`.
    """

    period: Any = 8
    base: int = 2
    alpha: float = 1.0
    bound: float = 0.02
    longest: int = 64

    def _begin(self) -> None:
        if self.period == "qsr":
            self._period: Period = QSR(self.alpha, self.base)
        elif self.period == "quality":
            self._period = Quality(self.bound, self.base, self.longest)
        elif isinstance(self.period, str):
            raise ValueError(f"there is no period {self.period!r}: a number, qsr, quality")
        else:
            self._period = Period(self.period)
        self._due = self._period.steps
        self._losses: list[list[float]] = [[] for _ in range(self.setting.workers)]

    def _step(self, rank: int, gradient: Array, loss: float) -> Life | None:
        self._losses[rank].append(loss)
        return super()._step(rank, gradient, loss)

    def _is_due(self, rank: int) -> bool:
        return bool(self.steps[rank] >= self._due)

    def _exchange(self, rank: int) -> Life:
        self.models[rank] = yield from self.group.meet(rank, self.models[rank], self._average)

    def _average(self, ranks: Array, models: list[Array]) -> tuple[Array, float]:
        # An exchange comes before the loss of its step is observed.
        for losses in zip(*(self._losses[rank][:-1] for rank in ranks), strict=True):
            self._period.observe(float(np.mean(losses)))
        self._losses = [each[-1:] for each in self._losses]
        learning_rate = float(self.cluster.learning_rate)
        self._due += self._period.following(learning_rate, lambda mean: mean)
        return self._mean(ranks, models)


class Hierarchical(LocalSGD):
    """Inside a host, synchronous SGD; between hosts, the mean of models at periods as in LocalSGD."""

    def _begin(self) -> None:
        super()._begin()
        size, host = self.setting.workers, self.setting.host
        starts = range(0, size, host)
        self._hosts = [Group(self.cluster, range(size)[start : start + host]) for start in starts]

    def _step(self, rank: int, gradient: Array, loss: float) -> Life:
        group = self._hosts[rank // self.setting.host]
        mean = yield from group.meet(
            rank, gradient, lambda _, each: (np.mean(each, axis=0), self.cluster.inside())
        )
        super()._step(rank, mean, loss)


@dataclass(eq=False)
class DiLoCo(Synchronizer):
    """Nesterov on the mean of what workers have moved in `period` steps."""

    period: int = 20
    learning_rate: float = 0.7
    momentum: float = 0.9
    compression: str | None = None
    share: float = 0.02
    rank: int = 4

    def _begin(self) -> None:
        self._compressed = Compressed(self.cluster, self.compression, self.share, self.rank)
        self._anchor = self.models[0].copy()
        self._velocity = np.zeros_like(self._anchor)

    def _exchange(self, rank: int) -> Life:
        moved = rules.outer_gradient(self._anchor, self.models[rank])
        self.models[rank] = yield from self.group.meet(rank, moved, self._outer_step)

    def _outer_step(self, ranks: Array, moved: list[Array]) -> tuple[Array, float]:
        mean, seconds = self._compressed(ranks, moved)
        self._anchor, self._velocity = rules.nesterov(
            self._anchor, self._velocity, mean, self.learning_rate, self.momentum
        )
        return self._anchor, self.cluster.inside() + seconds


@dataclass(eq=False)
class GossipPGA(Synchronizer):
    """Each pulls along the exponential graph and waits for that peer only.

    Every `every` steps, all take the mean of all models.
    """

    every: int = 16

    def _begin(self) -> None:
        self._published: dict[tuple[int, int], Array] = {}

    def _ready(self, rank: int, step: int) -> bool:
        return (rank, step) in self._published or self.cluster.dead(rank)

    def _exchange(self, rank: int) -> Life:
        step, models, living = int(self.steps[rank]), self.models, self.cluster.living().tolist()
        if rules.averages_globally(step, self.every):
            models[rank] = yield from self.group.meet(rank, models[rank], self._mean)
            return
        self._published[rank, step] = models[rank].copy()
        self._published.pop((rank, step - self.every), None)
        other = living[rules.exponential_peer(living.index(rank), step, len(living))]
        yield self._ready, other, step
        if (other, step) in self._published:
            yield self.cluster.transfer(other, rank)
            if not self.cluster.fails(rank):
                models[rank] = rules.pull(models[rank], self._published[other, step])


@dataclass(eq=False)
class PullGossip(Synchronizer):
    """Every worker reads a random one's model, and goes on with the mean of both."""

    period: int = 1

    def _peer(self, rank: int) -> int | None:
        """Return a random other worker; None if it is dead."""
        if self.setting.workers == 1:
            return None
        other = rules.random_peer(self.cluster.numbers[rank], rank, self.setting.workers)
        return None if self.cluster.dead(other) else other

    def _exchange(self, rank: int) -> Life | None:
        other = self._peer(rank)
        if other is not None:
            read = self.models[other].copy()  # as it is when the read begins
            yield self.cluster.transfer(other, rank)
            if not self.cluster.fails(rank):
                self.models[rank] = rules.pull(self.models[rank], read)


class Messages(PullGossip):
    """What pushing needs: messages that arrive while workers compute."""

    def _begin(self) -> None:
        self.inbox: list[list[tuple[float, Any]]] = [[] for _ in range(self.setting.workers)]

    def _may_send(self, rank: int) -> bool:
        """Return whether the last message has left; until then, a worker sends no other one."""
        return bool(self.cluster.leaves[rank] <= self.cluster.now)

    def _send(self, rank: int, other: int, message: Any) -> bool:
        """Send a message, which is there when its bytes are. False if it fails, which takes as long."""
        arrival = self.cluster.transfer(rank, other)
        if self.cluster.fails(rank):
            return False
        self.inbox[other].append((arrival, message))
        return True

    def _arrived(self, rank: int, senders: set[int] | None = None) -> list[Any]:
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
    """Every worker sends its model to a random one, and goes on with the mean of its own and those that
    came.
    """

    def _exchange(self, rank: int) -> None:
        self.models[rank] = rules.push(self.models[rank], self._arrived(rank))
        other = self._peer(rank)
        if other is not None and self._may_send(rank):
            self._send(rank, other, self.models[rank].copy())


@dataclass(eq=False)
class SGP(Messages):
    """Push-sum along the exponential graph.

    With `wait`, a worker waits so many seconds for the message of its turn.
    """

    wait: float = 0.0

    def _begin(self) -> None:
        super()._begin()
        self.weights = np.ones(self.setting.workers)
        self._due: list[set[int]] = [set() for _ in range(self.setting.workers)]

    def _at(self, rank: int) -> Any:
        return rules.unbiased(self.models[rank], self.weights[rank]).astype(np.float32)

    def _exchange(self, rank: int) -> Life:
        size, step = self.setting.workers, int(self.steps[rank]) // self.period
        source = rules.exponential_source(rank, step, size)
        other = rules.exponential_peer(rank, step, size)
        end = self.cluster.now + self.wait
        awaited = self.wait > 0 and source not in self._due[rank]
        self._due[rank].add(source)
        while not self._may_send(rank) and self.cluster.now < end:
            yield min(float(self.cluster.leaves[rank]), end)
        if other != rank and self._may_send(rank) and not self.cluster.dead(other):
            half, weight = self.models[rank] / 2, self.weights[rank] / 2
            if self._send(rank, other, (rank, half, weight)):  # what cannot be sent stays
                self.models[rank], self.weights[rank] = half, weight
        self._receive(rank)
        while awaited and source in self._due[rank] and self.cluster.now < end:
            if self.cluster.dead(source):
                break
            yield min(self.cluster.now + self.setting.step_s / 20, end)
            self._receive(rank)

    def _receive(self, rank: int) -> None:
        """Add what is there; where workers wait for turns, what is due."""
        used = self._arrived(rank, self._due[rank] if self.wait else None)
        self._due[rank] -= {source for source, _, _ in used}
        self.models[rank], self.weights[rank] = rules.push_sum(
            self.models[rank], self.weights[rank], [(value, weight) for _, value, weight in used]
        )

    def _step(self, rank: int, gradient: Array, loss: float) -> Life | None:
        return super()._step(rank, np.float32(self.weights[rank]) * gradient, loss)

    def judged(self) -> Array:
        """Return the mean of what the living workers stand for."""
        return np.mean([self._at(rank) for rank in self.cluster.living()], 0, keepdims=True)  # type: ignore[no-any-return]


@dataclass(eq=False)
class EASGD(Common):
    """Every worker and a centre move towards each other."""

    period: int = 4
    beta: float = 0.9

    def _exchange(self, rank: int) -> Life:
        yield self.cluster.spread()
        alpha = rules.elastic_rate(self.beta, self.setting.workers)
        difference = rules.elastic_difference(self.models[rank], self.common, alpha)
        self.models[rank] -= difference
        self.common += difference
        yield self.cluster.spread()


@dataclass(eq=False)
class SSP(Common):
    """Gradients are added to a common model; nobody is further ahead of the last than `slack` steps."""

    slack: int = 3

    def _may_begin(self, clock: int) -> bool:
        return rules.may_begin(clock, self.steps[self.cluster.living()].tolist(), self.slack)

    def _before(self, rank: int) -> Life:
        yield self._may_begin, int(self.steps[rank])
        yield self.cluster.spread()
        self.models[rank] = self.common

    def _step(self, rank: int, gradient: Array, loss: float) -> None:
        members = np.float32(len(self.cluster.living()))
        self.common -= self.cluster.learning_rate / members * gradient

    def _exchange(self, rank: int) -> Life:
        yield self.cluster.spread()


@dataclass(eq=False)
class Decoupled(Common):
    """DiLoCo that nobody waits for.

    The outer step takes what has arrived when a quorum has, and a grace has passed. Workers go on with it
    when they see it.
    """

    period: int = 20
    quorum: int = 2
    grace: float = 0.2
    learning_rate: float = 0.7
    momentum: float = 0.9

    def _begin(self) -> None:
        super()._begin()
        self._velocity = np.zeros_like(self.common)
        self._based = self.models.copy()  # the common model from which each worker has gone on
        self._arrived: list[tuple[float, Array]] = []  # when, and what

    def _exchange(self, rank: int) -> Life:
        yield self.cluster.spread()
        moved = rules.outer_gradient(self._based[rank], self.models[rank])
        self._arrived.append((self.cluster.now, moved))
        yield self.cluster.now + self.grace
        self._outer_step()
        yield self.cluster.spread()
        self.models[rank] = self._based[rank] = self.common

    def _outer_step(self) -> None:
        count, quorum = len(self._arrived), min(self.quorum, self.setting.workers)
        since = self._arrived[quorum - 1][0] if count >= quorum else np.inf
        waited = self.cluster.now - since
        if rules.quorum_reached(count, quorum, waited, self.grace * 0.999):
            mean = rules.weighted_mean([each for _, each in self._arrived], [1.0] * count)
            self._arrived.clear()
            self.common, self._velocity = rules.nesterov(
                self.common, self._velocity, mean, self.learning_rate, self.momentum
            )


SYNCHRONIZERS: dict[str, Callable[..., Synchronizer]] = {
    each.__name__: each
    for each in (
        *(AllReduce, LocalSGD, Hierarchical, DiLoCo, GossipPGA),
        *(PullGossip, PushGossip, SGP, EASGD, SSP, Decoupled),
    )
}
