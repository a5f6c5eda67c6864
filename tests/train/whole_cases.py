# SPDX-License-Identifier: Apache-2.0
"""Cases of cases.py that evaluate and predict over all processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import scipy.sparse
import tensorflow as tf

import rdmatensor.train as rt

ROWS = 43


class _Batches(keras.utils.PyDataset):  # type: ignore[misc]
    def __init__(self, *columns: Any) -> None:
        super().__init__()
        self._columns = columns

    def __len__(self) -> int:
        return -(-ROWS // 8)

    def __getitem__(self, index: int) -> Any:
        return tuple(each[8 * index : 8 * index + 8] for each in self._columns)


def whole() -> Any:
    """What evaluate() and predict() say, and what Keras says in one process."""
    rt.init()
    numbers = np.random.default_rng(2)
    x = numbers.standard_normal((ROWS, 5)).astype("f")
    y = (x.sum(1, keepdims=True) > 0.3).astype("f")
    weights = numbers.uniform(0, 2, ROWS).astype("f")
    keras.utils.set_random_seed(3)
    inputs = keras.Input((5,))
    outputs = {
        "a": keras.layers.Dense(1, activation="sigmoid", name="a")(inputs),
        "b": keras.layers.Dense(2, name="b", dtype="bfloat16")(inputs),
    }
    model = keras.Model(inputs, outputs["a"])
    both = keras.Model(inputs, outputs)
    model.compile(
        "sgd",
        "binary_crossentropy",
        metrics=["accuracy", keras.metrics.AUC(), keras.metrics.F1Score(average=None)],
        weighted_metrics=[keras.metrics.Precision()],
    )
    data = tf.data.Dataset.from_tensor_slices((x, y, weights)).batch(8)
    few: dict[str, Any] = {"verbose": 0, "return_dict": True}
    found: dict[str, list[Any]] = {
        "arrays": [
            rt.evaluate(model, x, y, sample_weight=weights, batch_size=8, **few),
            model.evaluate(x, y, sample_weight=weights, batch_size=8, **few),
        ],
        "dataset": [rt.evaluate(model, data, **few), model.evaluate(data, **few)],
        "batches": [
            rt.evaluate(model, _Batches(x, y), **few),
            model.evaluate(_Batches(x, y), **few),
        ],
        "few": [rt.evaluate(model, x[:5], y[:5], **few), model.evaluate(x[:5], y[:5], **few)],
        "list": [
            dict(enumerate(rt.evaluate(model, x, y, verbose=0))),
            dict(enumerate(model.evaluate(x, y, verbose=0))),
        ],
        "predicted": [rt.predict(both, x, batch_size=8), both.predict(x, verbose=0)],
        "predicted dataset": [rt.predict(both, data), both.predict(data, verbose=0)],
        "predicted batches": [
            rt.predict(both, _Batches(x)),
            both.predict(_Batches(x), verbose=0),
        ],
        "predicted few": [rt.predict(both, x[:3]), both.predict(x[:3], verbose=0)],
        "predicted sparse": [
            rt.predict(both, scipy.sparse.csr_matrix(x), batch_size=8),
            both.predict(x, verbose=0),
        ],
    }
    plain = {
        name: tf.nest.map_structure(lambda each: np.asarray(each, "f").tolist(), each)
        for name, each in found.items()
    }
    return [plain, _refused(model, x)]


def _refused(model: Any, x: Any) -> dict[str, str]:
    acts: dict[str, Callable[[], Any]] = {
        "generator": lambda: rt.evaluate(model, iter([(x, x[:, :1])])),
        "predicted generator": lambda: rt.predict(model, iter([x])),
        "shuffled": lambda: rt.predict(
            model, tf.data.Dataset.from_tensor_slices(x).shuffle(9, seed=1 + rt.rank()).batch(8)
        ),
        "other rows": lambda: rt.predict(model, x + rt.rank()),
        "steps": lambda: rt.evaluate(model, tf.data.Dataset.from_tensors(x).repeat(), steps=3),
    }
    found = {}
    for name, act in acts.items():
        try:
            act()
            found[name] = "nothing"
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"
    return found
