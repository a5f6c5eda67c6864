# SPDX-License-Identifier: Apache-2.0
"""The network that bench_asynchronous.py trains, in numpy, and its loop, without rdmatensor."""

from __future__ import annotations

import time
from typing import Any, Protocol

import numpy as np
from sklearn.datasets import load_digits

INPUTS, HIDDEN, CLASSES = 65, 64, 10
BATCH, TESTED = 16, 360


class Network:
    """65 inputs, of which one is always 1, ReLU, 10 classes; the weights are one vector."""

    def __init__(self, seed: int) -> None:
        x, y = load_digits(return_X_y=True)
        order = np.random.default_rng(seed).permutation(len(y))
        x = np.hstack([x / 16, np.ones((len(y), 1))]).astype("f")[order]
        self.test, self.train = (x[:TESTED], y[order][:TESTED]), (x[TESTED:], y[order][TESTED:])
        numbers = np.random.default_rng(seed)
        self.cut = INPUTS * HIDDEN
        self.weights = (numbers.standard_normal(self.cut + HIDDEN * CLASSES) * 0.1).astype("f")

    def layers(self) -> tuple[Any, Any]:
        """The two matrices, in the memory of the vector."""
        return (
            self.weights[: self.cut].reshape(INPUTS, HIDDEN),
            self.weights[self.cut :].reshape(HIDDEN, CLASSES),
        )

    def gradient(self, x: Any, y: Any) -> Any:
        """The gradient of the mean cross entropy."""
        first, second = self.layers()
        inner = np.maximum(x @ first, 0)
        scores = inner @ second
        shares = np.exp(scores - scores.max(1, keepdims=True))
        shares /= shares.sum(1, keepdims=True)
        shares[np.arange(len(y)), y] -= 1
        shares /= len(y)
        back = (shares @ second.T) * (inner > 0)
        return np.concatenate([(x.T @ back).ravel(), (inner.T @ shares).ravel()]).astype("f")

    def accuracy(self) -> float:
        """On what is not trained on."""
        first, second = self.layers()
        scores = np.maximum(self.test[0] @ first, 0) @ second
        return float((scores.argmax(1) == self.test[1]).mean())


class Way(Protocol):
    """How a process trains together with the others."""

    def gradient(self, rows: Any) -> None:
        """Begin a step on these rows of the network's data."""

    def accuracy(self) -> float:
        """Return the accuracy of this process's own model on examples that no process trains on."""

    def update(self, done: bool) -> bool:
        """End the step. Return True if training ends, because all processes are done."""

    def close(self) -> None:
        """End together."""


def train(
    way: Way, network: Network, numbers: Any, target: float, pad: float, limit: float
) -> float:
    """Seconds until this process's model reaches the target; `limit` if it does not before.

    A step takes `pad` seconds, most of which it sleeps, as if the network were larger: so the processors stay
    free, and processes do not disturb each other. The padding lies before the backward pass.
    """
    begin, found, steps, over = time.monotonic(), limit, 0, False
    while not over:
        started = time.monotonic()
        way.gradient(numbers.integers(0, len(network.train[1]), BATCH))
        if steps % 5 == 0 and found == limit and way.accuracy() >= target:
            found = time.monotonic() - begin
        time.sleep(max(0.0, started + pad - time.monotonic()))
        steps += 1
        over = way.update(found < limit or started - begin > limit)
    way.close()
    return found
