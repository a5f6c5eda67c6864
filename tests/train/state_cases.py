# SPDX-License-Identifier: Apache-2.0
"""Cases of cases.py about what models have beside weights: metrics, seeds, constants of layers."""

from __future__ import annotations

import warnings
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import rdmatensor.train as rt

__all__ = ["metrics", "streams"]

WIDTH, CLASSES = 6, 3
L = keras.layers


def _data(rows: int = 64) -> tuple[Any, Any]:
    numbers = np.random.default_rng(0)
    x = numbers.normal(size=(rows, WIDTH)).astype("f")
    return x, (x @ numbers.normal(size=(WIDTH, 1))).astype("f")


class Rooted(keras.metrics.Mean):  # type: ignore[misc]
    """A user's metric that only adds: the root of a mean."""

    def update_state(self, y: Any, p: Any, sample_weight: Any = None) -> None:
        super().update_state(tf.square(tf.cast(y, p.dtype) - p))

    def result(self) -> Any:
        return tf.sqrt(super().result())


class Counts(keras.metrics.Metric):  # type: ignore[misc]
    """A user's metric that assigns sums, and a vector."""

    def __init__(self, **more: Any) -> None:
        super().__init__(**more)
        self.each = self.add_variable((CLASSES,), "zeros", name="each")
        self.seen = self.add_variable((), "zeros", dtype="int32", name="seen")

    def update_state(self, y: Any, p: Any, sample_weight: Any = None) -> None:
        hits = tf.one_hot(tf.argmax(p, -1), CLASSES)
        self.each.assign(self.each + keras.ops.sum(hits, axis=0))
        self.seen.assign_add(tf.shape(p)[0])

    def result(self) -> Any:
        return self.each / tf.cast(self.seen, tf.float32)


class Largest(keras.metrics.Metric):  # type: ignore[misc]
    """A user's metric that cannot be merged: its state is no sum."""

    def __init__(self, **more: Any) -> None:
        super().__init__(**more)
        self.most = self.add_variable((), "zeros", name="most")

    def update_state(self, y: Any, p: Any, sample_weight: Any = None) -> None:
        self.most.assign(tf.maximum(self.most, tf.reduce_max(p)))

    def result(self) -> Any:
        return self.most


class Biased(Largest):
    """Another one: it adds to a state that does not begin with 0."""

    def update_state(self, y: Any, p: Any, sample_weight: Any = None) -> None:
        self.most.assign(self.most + tf.reduce_sum(p))

    def reset_state(self) -> None:
        self.most.assign(1.0)


class Own(keras.Model):  # type: ignore[misc]
    """Steps of the user's own, whose logs have other names than the metrics."""

    def __init__(self) -> None:
        super().__init__()
        self.net = keras.Sequential([keras.Input((WIDTH,)), L.Dense(1)])
        self.total, self.other = (
            keras.metrics.Mean(name="total_loss"),
            keras.metrics.Mean(name="other_loss"),
        )
        self.built = True

    @property
    def metrics(self) -> list[Any]:
        return [self.total, self.other]

    def _step(self, data: Any, train: bool) -> dict[str, Any]:
        x, y = data
        with tf.GradientTape() as tape:
            losses = tf.square(self.net(x) - y)
            loss = tf.reduce_mean(losses)
        if train:
            weights = self.trainable_weights
            self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        self.total.update_state(losses)
        self.other.update_state(loss, sample_weight=2.0 * tf.cast(tf.shape(x)[0], tf.float32))
        return {"loss": self.total.result(), "twice": self.other.result()}

    def train_step(self, data: Any) -> Any:
        return self._step(data, True)

    def test_step(self, data: Any) -> Any:
        return self._step(data, False)


def _keras_metrics() -> list[Any]:
    of = keras.metrics
    return [
        "accuracy",
        of.F1Score(average=None),
        *(of.AUC(), of.Precision(), of.Recall(), of.SensitivityAtSpecificity(0.5)),
        *(of.R2Score(), of.CosineSimilarity(), of.RootMeanSquaredError()),
        of.OneHotMeanIoU(CLASSES),
    ]


def metrics() -> Any:
    """Logs of all kinds of metrics, with uneven parts of the data for validation."""
    run = rt.init()
    x, y = _data()
    labels = (y > 0).ravel() + (y.ravel() > 1).astype(int)
    hot = keras.utils.to_categorical(labels, CLASSES)
    order = np.argsort(labels, kind="stable")
    if run.size == 2:  # rank 0 has the easy part, as when files are sharded
        order = order[:40] if run.rank == 0 else order[40:]
    validation = x[order], hot[order]
    found: dict[str, Any] = {}
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for eager in (False, True):
            keras.utils.set_random_seed(1)
            model = keras.Sequential(
                [keras.Input((WIDTH,)), L.Dense(CLASSES, activation="softmax")]
            )
            own = [of(name=of.__name__.lower()) for of in (Rooted, Counts, Largest, Biased)]
            model.compile(
                rt.distribute(keras.optimizers.SGD(0.05)),
                loss="categorical_crossentropy",
                metrics=[*_keras_metrics(), *own],
                weighted_metrics=["mae"],
                run_eagerly=eager,
            )  # fmt: skip
            history = model.fit(
                *rt.shard((x, hot)),
                batch_size=16 // run.size,
                epochs=2,
                shuffle=False,
                validation_data=validation,
                verbose=0,
                callbacks=rt.callbacks(),
            ).history
            found["eager" if eager else "graph"] = {
                name: np.asarray(each).tolist() for name, each in history.items()
            }
    model = Own()
    keras.utils.set_random_seed(1)
    model.compile(rt.distribute(keras.optimizers.SGD(0.05)))
    model.net.set_weights([np.ones([WIDTH, 1]), np.zeros(1)])
    part = (x[order], y[order])
    history = model.fit(*rt.shard((x, y)), batch_size=16 // run.size, epochs=2, shuffle=False,
                        validation_data=part, verbose=0, callbacks=rt.callbacks()).history  # fmt: skip
    found["own"] = dict(history)
    return [found, [str(each.message) for each in said if "cannot be merged" in str(each.message)]]


class Noisy(keras.layers.Layer):  # type: ignore[misc]
    """A user's layer with two streams: one of its own, under a name of its own, and Keras's."""

    def __init__(self) -> None:
        super().__init__()
        self.mine = keras.random.SeedGenerator(3, name="mine")

    def call(self, x: Any, training: bool = False) -> Any:
        if not training:
            return x
        noise = keras.random.normal(tf.shape(x), seed=self.mine)
        return x + 0.1 * noise + 0.1 * keras.random.normal(tf.shape(x))


def _noisy() -> Any:
    keras.utils.set_random_seed(7)  # in all processes alike, as programs do
    return keras.Sequential(
        [keras.Input((WIDTH,)), L.Dense(8), Noisy(), L.Dropout(0.5), L.Dense(1)]
    )


def _seeds(model: Any) -> list[Any]:
    return [np.asarray(each).tolist() for each in model.variables if "seed" in each.name]


def streams(backup: str, kept: str | None = None) -> Any:
    """Masks and states of seeds after fit, after a broadcast, and when training goes on from a backup.

    With `kept`, only the latter, from a backup of another number of processes."""
    rt.init()
    x, y = rt.shard(_data())

    def fit(model: Any, folder: str, epochs: int) -> dict[str, Any]:
        model.compile(rt.distribute(keras.optimizers.SGD(0.05, momentum=0.9)), loss="mse")
        history = model.fit(x, y, batch_size=8, epochs=epochs, shuffle=False, verbose=0,
                            callbacks=rt.callbacks(backup=folder)).history  # fmt: skip
        weights = [np.asarray(each).tolist() for each in model.trainable_variables]
        return {"loss": history.get("loss"), "weights": weights, "seeds": _seeds(model)}

    if kept is not None:
        return fit(_noisy(), kept, 6)
    model = _noisy()
    rt.broadcast_variables(model.variables)
    first = _seeds(model)
    rt.broadcast_variables(model.variables)
    found: dict[str, Any] = {"broadcast": first, "again": _seeds(model)}
    found["mask"] = np.asarray(model(np.ones((1, WIDTH), "f"), training=True)).tolist()
    found["whole"] = fit(_noisy(), f"{backup}/whole", 4)
    fit(_noisy(), f"{backup}/parts", 2)
    found["resumed"] = fit(_noisy(), f"{backup}/parts", 4)
    return found
