# SPDX-License-Identifier: Apache-2.0
"""The data that benchmarks train on, which scikit-learn ships. This module does not import TensorFlow."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from importlib import resources

import numpy as np
import numpy.typing as npt
from sklearn.datasets import load_digits

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int32]
# The share of the data that training never sees.
_HELD_OUT = 0.1
_SEED = 7


def text() -> str:
    """scikit-learn's descriptions of its data sets: some 43,000 characters of English."""
    folder = resources.files("sklearn.datasets") / "descr"
    files = sorted((each for each in folder.iterdir() if each.name.endswith(".rst")), key=str)
    return "\n".join(each.read_text(encoding="utf-8") for each in files)


class Data(ABC):
    """Examples for training, and held-out ones. The step and the worker decide what a batch contains."""

    def __init__(self, examples: int) -> None:
        order = np.random.default_rng(_SEED).permutation(examples)
        held_out = int(examples * _HELD_OUT)
        self._test, self._train = order[:held_out], order[held_out:]

    def batch(self, step: int, worker: int, size: int) -> tuple[npt.NDArray, npt.NDArray]:
        """The inputs and labels of a worker in a step."""
        random = np.random.default_rng([_SEED, step, worker])
        return self.examples(random.choice(self._train, size))

    def held_out(self, size: int) -> tuple[npt.NDArray, npt.NDArray]:
        """Inputs and labels that are in no batch; always the same."""
        return self.examples(np.resize(self._test, size))

    @abstractmethod
    def examples(self, numbers: Ints) -> tuple[npt.NDArray, npt.NDArray]:
        """The inputs and labels of these examples."""


class Digits(Data):
    """Handwritten digits: images of 8 x 8 x 1 floats in 0..1, and labels 0..9."""

    classes = 10

    def __init__(self) -> None:
        images, labels = load_digits(return_X_y=True)
        self._images = (images / 16.0).astype(np.float32).reshape(-1, 8, 8, 1)
        self._labels = labels.astype(np.int32)
        super().__init__(len(labels))

    def examples(self, numbers: Ints) -> tuple[Floats, Ints]:
        return self._images[numbers], self._labels[numbers]


class Words(Data):
    """Words of the text. The inputs are the two words before and the two words after each label."""

    context = 4

    def __init__(self) -> None:
        words = re.findall(r"[a-z]+", text().lower())
        number = {word: index for index, word in enumerate(sorted(set(words)))}
        self.classes = len(number)
        self._words = np.array([number[word] for word in words], np.int32)
        super().__init__(len(self._words) - self.context)

    def examples(self, numbers: Ints) -> tuple[Ints, Ints]:
        middle = np.asarray(numbers) + 2
        around = np.stack([self._words[middle + each] for each in (-2, -1, 1, 2)], axis=1)
        return around, self._words[middle]
