# SPDX-License-Identifier: Apache-2.0
"""What simulated workers train: a network of two layers on scikit-learn's digits, in numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

FEATURES, HIDDEN, CLASSES = 64, 32, 10
# How many of the 1797 digits are kept to measure accuracy.
_TESTED = 360


class Problem:
    """Digits and a network. Models are rows of an array: many workers' gradients are one call."""

    def __init__(self, batch: int = 16) -> None:
        from sklearn.datasets import load_digits

        digits = load_digits()
        order = np.random.default_rng(0).permutation(len(digits.target))
        features = (digits.data[order] / 16.0 - 0.5).astype(np.float32)
        classes = digits.target[order]
        self._features, self._classes = features[_TESTED:], classes[_TESTED:]
        self._tested, self._truth = features[:_TESTED], classes[:_TESTED]
        self.batch = batch
        self.examples = len(self._classes)
        self._shapes = ((FEATURES, HIDDEN), (HIDDEN,), (HIDDEN, CLASSES), (CLASSES,))
        self._ends = np.cumsum([int(np.prod(shape)) for shape in self._shapes])
        self.parameters = int(self._ends[-1])

    def matrices(self, vector: Array) -> list[Array]:
        """Return the layers' weights, as views of a model or of several."""
        starts = [0, *self._ends[:-1]]
        return [
            vector[..., start:end].reshape(*vector.shape[:-1], *shape)
            for start, end, shape in zip(starts, self._ends, self._shapes, strict=True)
        ]

    def begin(self, seed: int) -> Array:
        """Return a model before training."""
        numbers = np.random.default_rng(seed)
        model = np.zeros(self.parameters, np.float32)
        first, _, second, _ = self.matrices(model)
        first[:] = numbers.standard_normal(first.shape) / np.sqrt(FEATURES)
        second[:] = numbers.standard_normal(second.shape) / np.sqrt(HIDDEN)
        return model

    def gradients(self, models: Array, numbers: np.random.Generator) -> tuple[Array, Array]:
        """Return the gradient of each model (a row) on a batch of its own, and its loss."""
        count = len(models)
        rows = numbers.integers(0, self.examples, (count, self.batch))
        features, classes = self._features[rows], self._classes[rows]
        first, first_bias, second, second_bias = self.matrices(models)
        hidden = np.maximum(features @ first + first_bias[:, None], 0)
        chances = _softmax(hidden @ second + second_bias[:, None])
        at = (np.arange(count)[:, None], np.arange(self.batch)[None], classes)
        losses = -np.log(np.maximum(chances[at], 1e-12)).mean(1)
        chances[at] -= 1
        chances /= self.batch
        back = (chances @ second.swapaxes(1, 2)) * (hidden > 0)
        result = np.empty_like(models)
        parts = self.matrices(result)
        np.matmul(features.swapaxes(1, 2), back, out=parts[0])
        parts[1][:] = back.sum(1)
        np.matmul(hidden.swapaxes(1, 2), chances, out=parts[2])
        parts[3][:] = chances.sum(1)
        return result, losses

    def accuracy(self, models: Array) -> float:
        """Return the mean share of digits, kept apart, that the models classify correctly."""
        first, first_bias, second, second_bias = self.matrices(models)
        hidden = np.maximum(self._tested @ first + first_bias[:, None], 0)
        found = (hidden @ second + second_bias[:, None]).argmax(-1)
        return float((found == self._truth).mean())


def _softmax(values: Array) -> Array:
    values -= values.max(-1, keepdims=True)
    np.exp(values, out=values)
    values /= values.sum(-1, keepdims=True)
    return values
