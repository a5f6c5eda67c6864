# SPDX-License-Identifier: Apache-2.0
"""Asynchronous DiLoCo: processes train for long on their own, and owners of fragments merge what arrives."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from ...errors import UsageError
from . import rules
from .base import Array, same_size
from .owned_shards import Owned, Strips, recut

if TYPE_CHECKING:
    from ..run.membership import Membership

# Seconds between two looks whether the grace has passed.
_TICK = 0.02
# What is kept of messages that are not merged.
_ARRIVED = ("from", "weights", "changes")


class Decoupled(Owned):
    """Send what a process has changed every `period` steps, and soon afterwards take up what all have merged.

    Decoupled DiLoCo (arXiv 2604.21428). The model is cut into fragments, one for each process. The owner of a
    fragment waits for `quorum` processes, and then for `grace` seconds for more; it makes one outer step
    (Nesterov, `learning_rate`, `momentum`) with the mean of what has arrived, weighted by steps. The rest
    counts for the next merge. Processes do not wait: they go on, and keep what they have changed since. When
    processes die, a quorum is as many as are left. A dead owner's fragment is merged no more. What was sent
    to an owner that was lost before it merged goes with the next message, and may then count twice.
    """

    comes_back: ClassVar[bool] = True

    def __init__(
        self,
        period: int = 50,
        quorum: int = 2,
        grace: float = 0.2,
        learning_rate: float = 0.7,
        momentum: float = 0.9,
    ) -> None:
        if period < 2 or quorum < 1 or grace < 0:
            raise UsageError(
                f"period is {period}, quorum {quorum}, grace {grace}: give at least 2, 1 and 0"
            )
        self.period, self.quorum, self.grace = period, quorum, grace
        self.learning_rate, self.momentum = learning_rate, momentum
        self.merges = 0
        """How often this process has merged its fragment."""

    def begin(self, members: Membership, x: Array) -> int:
        """Share the model as fragments. Begin to merge what arrives for the own one."""
        self._anchor = x.copy()
        self._sent: dict[int, Array] = {}  # the fragments as they were sent, not yet merged
        self._losses = [0] * members.size  # of each owner, when it was sent to
        self._seen = dict.fromkeys(range(members.size), 0)
        self._last = members.step
        self._arrived: dict[int, tuple[Array, float]] = {}
        self._since = 0.0
        self._strips = Strips(members, x, self._take, self._merge_if_due, _TICK)
        self._velocity = np.zeros_like(self._strips.own)
        if self._kept:
            self._go_on(self._strips, self._kept)
        self._strips.serve()
        return members.step + self.period

    def _go_on(self, strips: Strips, kept: Mapping[str, Array]) -> None:
        strips.restore(kept["fragment"])
        self._velocity = same_size(kept["velocity"], strips.own.size)
        self._anchor = same_size(kept["anchor"], self._anchor.size)
        self._last = int(kept["last"])
        self._sent = {
            int(owner): kept["sent"][strips.part(int(owner))].copy() for owner in kept["sent to"]
        }
        for rank, weight, change in zip(*(kept[f"arrived {n}"] for n in _ARRIVED), strict=True):
            self._arrived[int(rank)] = change, float(weight)

    def _take(self, rank: int, number: int, change: Array) -> None:
        earlier, weight = self._arrived.get(rank, (0.0, 0.0))
        # A second message before a merge continues the first.
        self._arrived[rank] = change + earlier, number + weight
        self._merge_if_due()

    def _merge_if_due(self) -> None:
        if not self._arrived:
            return
        others = self.strips.members.store
        alive = 1 + sum(not others.member(rank).gone for rank in self.strips.members.others)
        enough = min(self.quorum, alive)
        if len(self._arrived) < enough:
            self._since = 0.0
            return
        now = time.monotonic()
        self._since = self._since or now
        if len(self._arrived) >= alive or rules.quorum_reached(
            len(self._arrived), enough, now - self._since, self.grace
        ):
            self._merge()

    def _merge(self) -> None:
        changes, weights = zip(*self._arrived.values(), strict=True)
        self._arrived.clear()
        self._since = 0.0
        mean = rules.weighted_mean(changes, weights)
        strips = self.strips
        merged, self._velocity = rules.nesterov(
            strips.own, self._velocity, mean, self.learning_rate, self.momentum
        )
        strips.own[:] = merged
        strips.version += 1
        self.merges += 1
        strips.publish()

    def exchange(self, x: Array, step: int, learning_rate: float) -> int:
        """Take up merged fragments; at the end of a period, send what has changed."""
        for owner in self.strips.owners:
            self._adopt(x, owner)
        self.members.offer(x, step)
        lag = max(1, self.period // 10)
        if step - self._last < self.period - lag:
            return self._last + self.period  # it came only to adopt
        weight, self._last = step - self._last, step
        for owner in self.strips.owners:
            part = self.strips.part(owner)
            if self._losses[owner] != self.members.losses[owner]:
                self._sent.pop(owner, None)  # it may never have arrived
            if owner in self._sent:
                continue  # not merged yet: what has changed since goes with the next message
            change = rules.outer_gradient(self._anchor[part], x[part])
            if self.strips.send(owner, change, weight):
                self._sent[owner] = x[part].copy()
                self._losses[owner] = self.members.losses[owner]
        return step + lag

    def _adopt(self, x: Array, owner: int) -> None:
        """Take up a merged fragment, and keep what was changed here since it was sent."""
        found = self.strips.read(owner)
        if found is None or found[0] == self._seen[owner]:
            return
        self._seen[owner] = found[0]
        part = self.strips.part(owner)
        since = self._sent.pop(owner, None)
        kept = x[part] - (self._anchor[part] if since is None else since)
        self._anchor[part] = found[2]
        x[part] = found[2] + kept

    def state(self) -> Mapping[str, Array]:
        """Return the own fragment with what waits to be merged, and what was sent."""
        with self.strips.lock:
            sent = self._anchor.copy()
            for owner, part in self._sent.items():
                sent[self.strips.part(owner)] = part
            ranks, arrived = list(self._arrived), list(self._arrived.values())
            changes = np.stack([self._velocity, *(change for change, _ in arrived)])[1:]
            waiting = (ranks, [weight for _, weight in arrived], changes)
            return {
                "velocity": self._velocity.copy(),
                "fragment": self.strips.own.copy(),
                "anchor": self._anchor.copy(),
                "last": np.array(self._last),
                "sent": sent,
                "sent to": np.array(list(self._sent), np.int64),
                **{
                    f"arrived {name}": np.array(each)
                    for name, each in zip(_ARRIVED, waiting, strict=True)
                },
            }

    def regroup(
        self, states: Sequence[Mapping[str, Array]], rank: int, size: int
    ) -> Mapping[str, Array]:
        # What had been sent was not adopted, so it is a part of the difference to the common model.
        """Return a fragment of the common model."""
        common = recut(states, "fragment", 0, 1)
        return {
            "velocity": recut(states, "velocity", rank, size),
            "fragment": recut(states, "fragment", rank, size),
            "anchor": common,
            "last": states[0]["last"],
            "sent": common,
            "sent to": np.zeros(0, np.int64),
            **{f"arrived {name}": np.zeros(0) for name in _ARRIVED},
        }
