# SPDX-License-Identifier: Apache-2.0
"""One process of the stores' part of chaos.py: keeps several models together with the others, without waiting
for them. Runs in a peer of tests/support/nursery.py."""

from __future__ import annotations

import gc
import random
import threading
import time
from collections import Counter
from typing import Any

import numpy as np

import rdmatensor
import rdmatensor.train as rt
from rdmatensor.train.run.membership import Membership
from rdmatensor.train.run.rejoin import read_model
from rdmatensor.train.sync.base import Array
from rdmatensor.train.sync.gossip import Gossip
from rdmatensor.train.sync.members import Members
from support.usage import usage

__all__ = ["Member", "usage"]

NUMBERS = 60_000
RATE, PAUSE_S = 0.1, 0.004
PATIENCE = 60.0
# What a call may fail with that leaves the other process where it is.
SHORT = ("LIMIT", "NO_MEMORY")
# How often all models are updated, once all processes are together.
LAST_STEPS = 80


class Marked(Gossip):
    """Publishes and pushes vectors that consist of one number, their mark; what comes is of one number too.

    The model is left alone.
    """

    def _open(self, run: Any, x: Array) -> None:
        self._members = Members(run, x.nbytes, x.nbytes)
        self._out, self._in = np.zeros_like(x), np.zeros_like(x)
        self._members.store.publish(self._out, 0)

    def exchange(self, x: Array, step: int, rate: float) -> int:
        members, partner = self.members, self.partner()
        self._out[:] = step
        members.store.publish(self._out, step)
        members.offer(x, step)
        for arrival in members.arrivals():
            _whole(arrival.data.view(x.dtype), arrival.mark, f"a push of rank {arrival.rank}")
            arrival.release()
        if partner is not None:
            mark = members.pull(partner, self._in)
            if mark is not None:
                _whole(self._in, mark, f"what was pulled from rank {partner}")
            members.push(partner, self._out, step)
        return step + self.period


def _whole(found: Array, mark: int, what: str) -> None:
    """AssertionError if it is torn, or another version than it says."""
    assert found.min() == found.max() == mark, (
        f"{what} has numbers from {found.min()} to {found.max()}, and the mark {mark}"
    )


def ways() -> list[Any]:
    """Each way to keep models together, new."""
    return [rt.sync.PullGossip(), rt.sync.SGP(), rt.sync.Decoupled(period=10, grace=0.02), Marked()]


class Model:
    """A vector that shall become the common target. A process sees only a part of it, so alone it cannot."""

    def __init__(self, run: Membership, sync: Any) -> None:
        self.sync = sync
        self._target = np.random.default_rng(1).standard_normal(NUMBERS).astype("f")
        self._seen = np.arange(NUMBERS) % run.size != run.rank
        self.x = np.zeros(NUMBERS, "f")
        first = read_model(run, self.x) if run.group is None else 0
        run.step = self.steps = first
        self._next = sync.begin(run, self.x)

    def step(self) -> float:
        """One update, and an exchange if it is due. Returns the seconds that this took."""
        self.x -= RATE * self._seen * (self.x - self._target)
        self.steps += 1
        if self.steps < self._next:
            return 0.0
        # If it raises, the next step tries again.
        begin = time.monotonic()
        self._next = self.steps + 1
        self._next = self.sync.exchange(self.x, self.steps, RATE)
        return time.monotonic() - begin

    def loss(self) -> float:
        """Relative to that of the first model."""
        return float(((self.x - self._target) ** 2).mean() / (self._target**2).mean())

    def together(self) -> bool:
        """Whether this process reaches all others, and they reach it."""
        members = self.sync.members
        found = [members.store.member(rank) for rank in members.others]
        return members.reachable == members.others and all(m.connected and m.present for m in found)


class _Pulse:
    """Measures how long this process was stopped, or the machine let it wait: a clock that such times pass by
    would be what to measure exchanges with."""

    def __init__(self) -> None:
        self.lost = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True)
        self._thread.start()

    def _beat(self) -> None:
        last = time.monotonic()
        while not self._over.wait(0.02):
            now = time.monotonic()
            self.lost += max(0.0, now - last - 0.04)
            last = now

    def close(self) -> None:
        self._over.set()
        self._thread.join()


class Member:
    """A device, and the models of one episode after the other."""

    def __init__(self, device: rdmatensor.Device, rank: int, size: int) -> None:
        self._device, self._rank, self._size = device, rank, size
        self._models: list[Model] = []
        self._run: Any = None

    def begin(self, episode: str, addresses: list[str], again: bool) -> None:
        """Opens all models: with all others, or again, in the place of a process that died."""
        self._run = run = Membership()
        run.rank, run.size, run.timeout = self._rank, self._size, PATIENCE
        run.device, run.name = self._device, episode
        if again:
            run.addresses = addresses
        else:
            root = None if self._rank == 0 else addresses[0]
            run.group = rdmatensor.Group(
                self._device, self._rank, self._size, root, episode, PATIENCE
            )
        self._models = [Model(run, sync) for sync in ways()]

    def train(self, seed: int, seconds: float, limit: float) -> dict[str, int]:
        """Steps for a while; how often exchanges ended how."""
        dice, outcomes = random.Random(seed), Counter[str]()
        end = time.monotonic() + seconds
        pulse = _Pulse()
        while time.monotonic() < end:
            for model in self._models:
                self._try(model, limit, pulse, outcomes)
            time.sleep(dice.uniform(0, 2 * PAUSE_S))
        pulse.close()
        return dict(outcomes)

    def come_together(self, limit: float) -> dict[str, int]:
        """Steps without faults: until all are together, and as many more as models need."""
        outcomes: Counter[str] = Counter()
        end, left = time.monotonic() + PATIENCE, LAST_STEPS
        pulse = _Pulse()
        while left:
            for model in self._models:
                self._try(model, limit, pulse, outcomes)
            left -= all(model.together() for model in self._models)
            assert time.monotonic() < end, f"not together: {self.holds()}"
            time.sleep(PAUSE_S)
        pulse.close()
        return dict(outcomes)

    def _try(self, model: Model, limit: float, pulse: _Pulse, outcomes: Counter[str]) -> None:
        name, lost, before = type(model.sync).__name__, model.sync.members.lost, pulse.lost
        try:
            took = model.step()
            assert took - (pulse.lost - before) < limit, f"an exchange of {name} took {took:.1f} s"
            outcomes[f"{name}: ok"] += 1
        except rdmatensor.DeviceError as error:  # others are lost members, and no errors
            assert error.status in SHORT, error
            outcomes[f"{name}: {type(error).__name__} {error.status}"] += 1
        outcomes[f"{name}: lost a process"] += model.sync.members.lost - lost

    def losses(self) -> dict[str, float]:
        """The losses of the models that are kept together."""
        return {
            type(each.sync).__name__: each.loss()
            for each in self._models
            if not isinstance(each.sync, Marked)
        }

    def holds(self) -> dict[str, Any]:
        """What may explain that processes are not together, or that memory is still held."""
        found: dict[str, Any] = {}
        for model in self._models:
            members = model.sync.members
            states = [members.store.member(rank) for rank in members.others]
            found[type(model.sync).__name__] = (members.reachable, states)
        return found | {"regions": self._device.stats().regions}

    def close(self) -> None:
        """Ends the episode."""
        for model in self._models:
            model.sync.close()
        self._models.clear()
        if self._run is not None and self._run.group is not None:
            self._run.group.close()
        self._run = None
        gc.collect()
