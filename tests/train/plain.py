# SPDX-License-Identifier: Apache-2.0
"""Processes that train digits in numpy, with synchronizers and without TensorFlow. Started by plain_ranks().

The case, the synchronizers and the settings come as JSON on the command line; each process answers with a
line of JSON.
"""

from __future__ import annotations

import copy
import json
import os
import sys
import time
from typing import Any

import numpy as np
from sklearn.datasets import load_digits

import rdmatensor.train as rt
from rdmatensor import Device, Group
from rdmatensor.errors import ConnectionRefused
from rdmatensor.train.run.membership import Membership
from rdmatensor.train.run.rejoin import find, read_model
from rdmatensor.train.sync import gossip, rules
from rdmatensor.train.sync.base import Array, Parameters

CLASSES, WIDTH, BATCH = 10, 65, 16


class Deaf(rt.sync.PullGossip):
    """Gossip that does everything but use what it hears."""

    def exchange(self, x: Array, step: int, rate: float) -> int:
        return super().exchange(x.copy(), step, rate)


class Run(Membership):
    """What synchronizers need of rdmatensor.train.Session, without TensorFlow."""

    def __init__(self, again: bool = False) -> None:
        self.rank, self.size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.timeout = 100.0
        port = int(os.environ["MASTER_PORT"])
        self.device = Device(f"rank {self.rank}", port=port if self.rank == 0 else 0)
        root = None if self.rank == 0 else f"127.0.0.1:{port}"
        if again:
            assert root is not None
            self.addresses = find(self.device, [root], self.size)
            return
        end = time.monotonic() + self.timeout
        while True:
            try:
                self.group = Group(self.device, self.rank, self.size, root, "plain", 100.0)
                return
            except ConnectionRefused:
                if time.monotonic() > end:
                    raise
                time.sleep(0.02)


def digits() -> tuple[Array, Array]:
    """Pixels and a one, and the number; in an order that mixes."""
    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    return np.hstack([x / 16, np.ones((len(y), 1))]).astype("f")[order], y[order]


def gradient(weights: Array, x: Array, y: Array) -> Array:
    """Of the cross entropy of a linear classifier, whose weights are a vector."""
    scores = x @ weights.reshape(WIDTH, CLASSES)
    scores -= scores.max(1, keepdims=True)
    shares = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    shares[np.arange(len(y)), y] -= 1
    return (x.T @ shares / len(y)).ravel().astype("f")


def accuracy(weights: Array, x: Array, y: Array) -> float:
    return float(((x @ weights.reshape(WIDTH, CLASSES)).argmax(1) == y).mean())


class Trained:
    """A model of this process, and how it is synchronized."""

    def __init__(self, run: Any, sync: Parameters, x: Array, y: Array) -> None:
        self.sync, self._x, self._y = sync, x, y
        self.weights = np.zeros(WIDTH * CLASSES, "f")
        if run.group is None:
            run.step = read_model(run, self.weights)
        self._random = np.random.default_rng(run.rank)
        self.steps, self._next = run.step, sync.begin(run, self.weights)

    def step(self, rate: float) -> None:
        rows = self._random.integers(0, len(self._y), BATCH)
        self.weights -= rate * gradient(self.weights, self._x[rows], self._y[rows])
        self.steps += 1
        if self.steps >= self._next:
            self._next = self.sync.exchange(self.weights, self.steps, rate)


def views(run: Any, each: list[str], steps: int) -> Any:
    """A process lacks the digits y with y % size == rank, so alone it cannot know them."""
    x, y = digits()
    mine = y % run.size != run.rank
    found = {}
    for text in each:
        model = Trained(run, eval(text), x[mine], y[mine])
        for number in range(steps):
            # In the end they only listen: the last steps favour what a process has seen itself.
            model.step(0.2 if number < steps - 40 else 0.0)
            if number % 20 == 0:
                run.group.barrier()  # processes that are far apart would be another test
        run.group.barrier()
        model.sync.finish()
        found[text] = [accuracy(model.weights, x, y), weight_of(run, model.sync)]
        run.group.barrier()
        model.sync.close()
    return found


def weight_of(run: Any, sync: Any) -> float | None:
    """The weight that a process holds and that has arrived, when all arrivals are there."""
    if not hasattr(sync, "weight"):
        return None
    held, end = sync.weight, time.monotonic() + 10
    while True:
        # Nobody releases, so nobody sends.
        held += sum(gossip.weight_of(each.mark) for each in sync.members.arrivals())
        late = float(time.monotonic() > end)
        total, too_late = run.group.all_reduce(np.array([held, late]))  # all stop together
        if abs(total - run.size) < 1e-9 or too_late:
            return float(held)


def kill(run: Any, each: list[str], steps: int, doomed: int) -> Any:
    """Several models in turns. One process dies on the way; the others lose no step."""
    x, y = digits()
    models = [Trained(run, eval(text), x, y) for text in each]
    slowest = 0.0
    run.group.barrier()
    for number in range(steps):
        begin = time.monotonic()
        for model in models:
            model.step(0.1)
        slowest = max(slowest, time.monotonic() - begin)
        if number == 20 and run.rank == doomed:
            print("training", flush=True)
        # The others come to the middle, and go on when they have seen the death.
        while number == steps // 2 and not all(_gone(model.sync, doomed) for model in models):
            time.sleep(0.01)
    for model in models:
        model.sync.finish()
    return {
        "accuracy": [accuracy(model.weights, x, y) for model in models],
        "steps": [model.steps for model in models],
        "slowest": slowest,
        "weight": [getattr(model.sync, "weight", None) for model in models],
    }


def come_back(run: Any, each: list[str], steps: int, doomed: int, again: bool) -> Any:
    """Several models in turns. One process dies, and comes back; the others never stop."""
    x, y = digits()
    models = [Trained(run, eval(text), x, y) for text in each]
    begun = [accuracy(model.weights, x, y) for model in models]
    first = (
        []
        if again
        else [_member(model, doomed).generation for model in models if run.rank != doomed]
    )
    end, together, slowest, seen = time.monotonic() + run.timeout, 0, 0.0, False
    while together < steps and time.monotonic() < end:
        begin = time.monotonic()
        for model in models:
            model.step(0.1)
        slowest = max(slowest, time.monotonic() - begin)
        if run.rank != doomed:
            now = [_member(model, doomed) for model in models]
            back = [
                each.connected and each.generation != one
                for each, one in zip(now, first, strict=True)
            ]
            seen = seen or all(back)
            together += seen
        elif again:
            together += 1
        elif models[0].steps == 20:
            print("training", flush=True)
    for model in models:
        model.sync.finish()
    return {
        "begun": begun,
        "accuracy": [accuracy(model.weights, x, y) for model in models],
        "together": together,
        "slowest": slowest,
        "weight": [getattr(model.sync, "weight", None) for model in models],
    }


def stop(run: Any, each: list[str], steps: int, doomed: int) -> Any:
    """Several models in turns. One process stops until the others have lost it, so that both directions of
    its connections break; then it goes on. All train until all have been together for some steps."""
    x, y = digits()
    models = [Trained(run, eval(text), x, y) for text in each]
    run.group.barrier()
    end, together, parted = time.monotonic() + run.timeout, 0, False
    while together < steps and time.monotonic() < end:
        for model in models:
            model.step(0.1)
        if run.rank == doomed and models[0].steps == 20:
            print("training", flush=True)
        if run.rank == doomed:
            parted = all(_members(model).lost for model in models)
        elif not parted and not any(doomed in _members(model).reachable for model in models):
            parted = True
            print("parted", flush=True)
        together += parted and all(_together(model) for model in models)
    for model in models:
        model.sync.finish()
    return {
        "together": together,
        "lost": [_members(model).lost for model in models],
        "accuracy": [accuracy(model.weights, x, y) for model in models],
    }


def _together(model: Trained) -> bool:
    """Whether the process reaches all others, and they reach it."""
    members = _members(model)
    found = [members.store.member(rank) for rank in members.others]
    return members.reachable == members.others and all(
        each.connected and each.present for each in found
    )


def _members(model: Trained) -> Any:
    return model.sync.members  # type: ignore[attr-defined]


def _member(model: Trained, rank: int) -> Any:
    return _members(model).store.member(rank)


def resume(run: Any, each: list[str], steps: int) -> Any:
    """What goes on from a state does what goes on without a break: by name, whether the states are equal
    then, and whether all numbers are after as many steps again."""
    x, y = digits()
    found = {}
    for text in each:
        model = Trained(run, eval(text), x, y)
        _in_turns(run, model, steps)
        kept = copied(model.sync.state())
        later = copy.copy(model)
        later.sync, later.weights = eval(text), model.weights.copy()
        later._random = copy.deepcopy(model._random)
        later.sync.restore(kept)
        later.sync.begin(run, later.weights)
        equal = _equal(kept, later.sync.state())
        run.group.barrier()
        for each_model in (model, later):
            _in_turns(run, each_model, steps)
        found[text] = [equal, bool((model.weights == later.weights).all())]
        run.group.barrier()
        for each_model in (model, later):
            each_model.sync.close()
    return found


def turns(run: Any, steps: int) -> Any:
    """SGP whose processes wait for their turns, at unequal speeds: whether it does what its paper's does."""
    sync = rt.sync.SGP(wait=run.timeout)
    numbers = np.random.default_rng(0).standard_normal((steps, run.size, 3)).astype("f")
    wanted, x = np.zeros((run.size, 3), "f"), np.zeros(3, "f")
    sync.begin(run, x)
    weights, furthest = set(), 0.0
    for step in range(steps):
        time.sleep(0.003 * ((run.rank + step) % run.size))
        x += numbers[step, run.rank]
        sync.exchange(x, step + 1, 0.1)
        moved = wanted + numbers[step]
        for rank in range(run.size):
            source = rules.exponential_source(rank, step, run.size)
            wanted[rank] = 0.5 * (moved[rank] + moved[source])
        weights.add(sync.weight)
        furthest = max(furthest, float(np.abs(x - wanted[run.rank]).max()))
    sync.close()
    return {"weights": list(weights), "furthest": furthest}


def in_step(run: Any, steps: int) -> Any:
    """SSP without slack, at unequal speeds: how far the model is from the one that moves by the mean of all
    changes. In the last step, owners take changes late, when those that sent them may have ended."""
    sync = rt.sync.SSP(slack=0)
    take = sync._take

    def late(rank: int, number: int, change: Array) -> None:
        if number == steps and rank != run.rank:
            time.sleep(0.2)
        take(rank, number, change)

    sync._take = late  # type: ignore[method-assign]
    numbers = np.random.default_rng(0).standard_normal((steps, run.size, 7)).astype("f")
    wanted, x = np.zeros(7, "f"), np.zeros(7, "f")
    sync.begin(run, x)
    furthest = 0.0
    for step in range(steps):
        time.sleep(0.003 * ((run.rank + step) % run.size))
        x += numbers[step, run.rank]
        sync.exchange(x, step + 1, 0.1)
        wanted += numbers[step].mean(0)
        furthest = max(furthest, float(np.abs(x - wanted).max()))
    sync.finish()
    last = sync.strips.read(run.rank)
    assert last is not None
    furthest = max(furthest, float(np.abs(last[2] - wanted[sync.strips.part(run.rank)]).max()))
    sync.close()
    return furthest


def copied(state: Any) -> dict[str, Array]:
    return {name: np.array(value) for name, value in state.items()}


def _equal(a: Any, b: Any) -> bool:
    return set(a) == set(b) and all(np.array_equal(a[name], b[name]) for name in a)


class _Punctual:
    """In place of members' push and arrivals: waits for what was sent in earlier turns, and orders it."""

    def __init__(self, run: Any, members: Any) -> None:
        self._run, self._members, self._push = run, members, members.push
        self._sent, self._due = np.zeros(run.size, np.int64), 0
        members.push, members.arrivals = self.push, self.arrivals

    def push(self, rank: int, data: Array, mark: int = 0) -> bool:
        done = bool(self._push(rank, data, mark))
        self._sent[rank] += done
        return done

    def arrivals(self) -> list[Any]:
        found = [self._members.store.take(self._run.timeout) for _ in range(self._due)]
        self._due = 0
        return sorted(found, key=lambda each: int(each.rank))

    def end_turn(self) -> None:
        everyone = self._run.group.all_gather(self._sent).reshape(-1, self._run.size)
        self._due += int(everyone[:, self._run.rank].sum())
        self._sent[:] = 0


def _in_turns(run: Any, model: Trained, steps: int) -> None:
    """One process after the other, so that what a process hears does not depend on the time."""
    members = _members(model)
    punctual = getattr(members, "punctual", None) or _Punctual(run, members)
    members.punctual = punctual
    for _ in range(steps):
        for rank in range(run.size):
            if rank == run.rank:
                model.step(0.1)
            punctual.end_turn()


def _gone(sync: Any, doomed: int) -> bool:
    return bool(sync.members.store.member(doomed).gone)


def main() -> None:
    arguments = json.loads(sys.argv[2])
    run = Run(arguments.get("again", False))
    cases: dict[str, Any] = {
        each.__name__: each for each in (views, kill, stop, resume, come_back, turns, in_step)
    }
    answer = cases[sys.argv[1]](run, **arguments)
    print(json.dumps(answer), flush=True)
    sys.stdin.read()  # until all have answered


if __name__ == "__main__":
    main()
