# SPDX-License-Identifier: Apache-2.0
"""Processes that train digits in numpy, with synchronizers and without TensorFlow. Started by plain_ranks().

The case, the synchronizers and the settings come as JSON on the command line; each process answers with a
line of JSON.
"""

from __future__ import annotations

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
from rdmatensor.train.sync import gossip
from rdmatensor.train.sync.base import Array, Synchronizer

CLASSES, WIDTH, BATCH = 10, 65, 16


class Deaf(rt.PullGossip):
    """Gossip that does everything but use what it hears."""

    def exchange(self, x: Array, step: int, rate: float) -> int:
        return super().exchange(x.copy(), step, rate)


class Run:
    """What synchronizers need of rdmatensor.train.Run, without TensorFlow."""

    def __init__(self) -> None:
        self.rank, self.size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.timeout = 100.0
        port = int(os.environ["MASTER_PORT"])
        self.device = Device(f"rank {self.rank}", port=port if self.rank == 0 else 0)
        root = None if self.rank == 0 else f"127.0.0.1:{port}"
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

    def __init__(self, run: Any, sync: Synchronizer, x: Array, y: Array) -> None:
        self.sync, self._x, self._y = sync, x, y
        self.weights = np.zeros(WIDTH * CLASSES, "f")
        self._random = np.random.default_rng(run.rank)
        self.steps, self._next = 0, sync.begin(run, self.weights)

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
        total = float(run.group.all_reduce(np.array([held]))[0])
        if total == run.size or time.monotonic() > end:
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


def _gone(sync: Any, doomed: int) -> bool:
    return bool(sync.members.store.member(doomed).gone)


def main() -> None:
    run = Run()
    cases: dict[str, Any] = {"views": views, "kill": kill}
    answer = cases[sys.argv[1]](run, **json.loads(sys.argv[2]))
    print(json.dumps(answer), flush=True)
    sys.stdin.read()  # until all have answered


if __name__ == "__main__":
    main()
