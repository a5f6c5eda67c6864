# SPDX-License-Identifier: Apache-2.0
"""Count what the user's data asks of tables: how many rows a batch looks up, and how many of them differ."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from ...errors import UsageError
from ..backend import mixin
from ..backend.tensorflow import operations
from ..run.session import Session
from ..sync.base import Array

# A longer sample is not read to its end.
BATCHES = 8


class Use(NamedTuple):
    """The demand of one process's batch on a table, as a mean over the sample."""

    ids: float
    rows: float
    """How many of them differ."""
    longest: float
    """The most rows that a process needs of an owner, if every process owns some."""


class _Watched:
    """The class that lies in front of an Embedding's while the sample is read."""

    _rdmatensor_seen: list[Array]

    def call(self, inputs: Any) -> Any:
        self._rdmatensor_seen.append(np.ravel(keras.ops.convert_to_numpy(inputs)))
        return super().call(inputs)  # type: ignore[misc]


def uses(run: Session, model: Any, layers: Sequence[Any], sample: Any) -> list[Use]:
    """Return how the batches of `sample` use the tables of the layers: the mean over all processes.

    All processes call it, each with batches as it gets them in fit(): one of arrays, as `x` or `(x, y)`, or a
    dataset or list of batches. It calls the model without training it. Raises UsageError if there is no
    batch.
    """
    found = []
    for layer in layers:
        mixin.add(layer, _Watched, _rdmatensor_seen=[])
    try:
        for inputs in itertools.islice(batches(sample), BATCHES):
            model(inputs, training=False)
            found.append([_use(run, layer._rdmatensor_seen) for layer in layers])
            for layer in layers:
                layer._rdmatensor_seen.clear()
    finally:
        for layer in layers:
            mixin.remove(layer)
    if not found:
        raise UsageError("parallelize(sample=...) has no batch: give one, as fit() gets them")
    mine = np.mean(np.array(found, np.float64), 0)
    means, longest = (
        operations.all_reduce(run, mine, op, "use of tables by the sample").numpy()
        for op in ("mean", "max")
    )
    return [Use(float(a[0]), float(a[1]), float(b[2])) for a, b in zip(means, longest, strict=True)]


def _use(run: Session, seen: Sequence[Array]) -> Use:
    ids = np.concatenate([np.zeros(0, np.int64), *seen]).astype(np.int64)
    rows = np.unique(ids)
    each = np.bincount(rows % run.size, minlength=run.size)
    return Use(len(ids), len(rows), float(each.max()))


def batches(sample: Any) -> Iterator[Any]:
    """Yield the inputs of each batch of a sample."""
    is_batches = isinstance(sample, tf.data.Dataset | keras.utils.PyDataset | Iterator) or (
        isinstance(sample, list) and all(isinstance(each, tuple) for each in sample)
    )
    if isinstance(sample, keras.utils.PyDataset):
        sample = (sample[i] for i in range(len(sample)))
    many: Iterable[Any] = sample if is_batches else [sample]
    for each in many:
        yield keras.utils.unpack_x_y_sample_weight(each)[0]
