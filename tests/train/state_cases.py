# SPDX-License-Identifier: Apache-2.0
"""Cases of cases.py about what models have beside weights: metrics, seeds, constants of layers."""

from __future__ import annotations

import warnings
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import rdmatensor.train as rt
from rdmatensor import UsageError

__all__ = ["metrics", "normalized", "states", "streams"]

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
        *(of.F1Score(average=None), of.AUC(), of.R2Score(), of.RootMeanSquaredError()),
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
                # How Keras's own are added up does not depend on how they are counted.
                metrics=[*(["accuracy"] if eager else _keras_metrics()), *own],
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


class Scaled(keras.layers.Layer):  # type: ignore[misc]
    """A user's layer with a constant that no config has."""

    def __init__(self, scale: Any) -> None:
        super().__init__()
        self.scale = scale
        self.rank = rt.rank()  # which changes nothing

    def call(self, x: Any) -> Any:
        return x * self.scale


def _adapted(layer: Any, data: Any) -> Any:
    layer.adapt(data)
    return layer


def _words(layer: Any, word: str) -> Any:
    return _adapted(layer, np.array([["the"], ["word"], [word]]))


def states() -> Any:
    """What fit does of layers that differ between processes, by kind of layer; and of those that do not."""
    run = rt.init()
    odd = float(run.rank)
    x, y = _data()
    mine = rt.shard(x) * (1 + odd)
    inputs = keras.Input((WIDTH,))
    made: dict[str, Any] = {
        "mean": lambda: _adapted(L.Normalization(), mine),
        "given": lambda: L.Normalization(mean=odd, variance=1.0),
        "bins": lambda: _adapted(L.Discretization(num_bins=3), mine),
        "rate": lambda: L.Dropout(0.25 + 0.25 * odd),
        "constant": lambda: Scaled(tf.constant([1.0 + odd])),
        "list": lambda: Scaled([1.0, 2.0 + odd] * 3),
        "closure": lambda: L.Lambda(lambda v: v * (1.0 + odd)),
        "nested": lambda: keras.Sequential([L.Dense(4), L.Dropout(0.1 + 0.1 * odd)]),
        "same": lambda: _adapted(L.Normalization(), x),
        "first": lambda: L.Normalization() if odd else _adapted(L.Normalization(), x),
        "seeds": lambda: L.Dropout(0.5, seed=run.rank),
        "user": lambda: Scaled(2.0),
    }
    found = {name: _tried(lambda of=of: [keras.Input((WIDTH,)), of(), L.Dense(1)], x, y)
             for name, of in made.items()}  # fmt: skip
    between = keras.Model(inputs, L.Dense(1)(keras.ops.multiply(inputs, 1.0 + odd)))
    found["between"] = _tried(lambda: between, x, y)
    flag = tf.Variable([run.rank == 0, False])
    rt.broadcast_variables([flag])
    found["flag"] = flag.numpy().tolist()
    words = np.array([["the"], ["word"]] * 32)
    for name, lookup in {
        "strings": L.StringLookup(),
        "text": L.TextVectorization(output_sequence_length=1),
    }.items():
        layers = [keras.Input((1,), dtype="string"), _words(lookup, f"of{run.rank}")]
        layers += [L.Embedding(9, 2), L.Flatten(), L.Dense(1)]
        found[name] = _tried(lambda of=layers: of, words, y, strings=True)
    model = keras.Sequential([keras.Input((WIDTH,)), L.Dropout(0.25 + 0.25 * odd), L.Dense(1)])
    try:
        rt.broadcast_variables(model)
        found["broadcast"] = "no error"
    except UsageError as error:
        found["broadcast"] = str(error)
    return found


def _tried(layers: Any, x: Any, y: Any, strings: bool = False) -> Any:
    """The error, or what the model predicts."""
    if rt.rank():
        L.Dense(1)  # names are counted in each process
    made = layers()
    model = made if isinstance(made, keras.Model) else keras.Sequential(made)
    model.compile(rt.distribute("sgd"), loss="mse")
    x, y = (tf.constant(x), tf.constant(y)) if strings else (x, y)
    try:
        model.fit(x, y, batch_size=32, verbose=0, callbacks=rt.callbacks())
    except UsageError as error:
        return str(error)
    return np.asarray(model.predict(x[:4], verbose=0)).tolist()


def normalized() -> Any:
    """BatchNormalization over the batches of all processes, in fit, eager calls and loops; uneven parts."""
    run = rt.init()
    x, y = _data()
    x = x * np.linspace(1, 9, WIDTH, dtype="f") + 1000 * np.arange(WIDTH, dtype="f")  # large means
    found: dict[str, Any] = {}
    keras.utils.set_random_seed(1)
    # Alone, Keras's synchronized moments would lose digits.
    several = run.size > 1
    layer = L.BatchNormalization(synchronized=several, momentum=0.5)
    layer.build((None, WIDTH))
    part = slice(None) if run.size == 1 else slice(0, 50) if run.rank == 0 else slice(50, None)
    rows = np.asarray(layer(x[part], training=True))
    found["eager"] = [
        np.asarray(each).tolist() for each in (layer.moving_mean, layer.moving_variance)
    ]
    found["rows"] = rows[:2].tolist()
    mask = np.arange(64 * 3).reshape(64, 3) % 5 > 0
    series = np.repeat(x[:, None], 3, axis=1) * np.arange(1, 4, dtype="f")[:, None]
    other = L.BatchNormalization(synchronized=several, momentum=0.5)
    other(series[part], training=True, mask=mask[part])
    found["masked"] = [
        np.asarray(each).tolist() for each in (other.moving_mean, other.moving_variance)
    ]
    found["moments"] = [
        np.asarray(each).tolist() for each in keras.ops.moments(x[part], [0], synchronized=several)
    ]
    for eager in (False, True):
        keras.utils.set_random_seed(1)
        normal = L.BatchNormalization(synchronized=several, momentum=0.5)
        model = keras.Sequential([keras.Input((WIDTH,)), L.Dense(5), normal, L.Dense(1)])
        model.compile(rt.distribute(keras.optimizers.SGD(0.05)), loss="mse", run_eagerly=eager)
        history = model.fit(*rt.shard((_data()[0], y)), batch_size=16 // run.size, epochs=2,
                            shuffle=False, verbose=0, callbacks=rt.callbacks()).history  # fmt: skip
        found[f"fit {eager}"] = [
            *(np.asarray(each).tolist() for each in model.weights),
            history["loss"],
        ]
    step = tf.function(lambda v: layer(v, training=True), jit_compile=True)
    found["errors"] = []
    normal = L.BatchNormalization(synchronized=True)
    model = keras.Sequential([keras.Input((WIDTH,)), normal, L.Dense(1)])
    model.compile(rt.distribute("sgd", rt.sync.PullGossip()), loss="mse")
    tries: list[Any] = [
        lambda: step(x),
        lambda: model.fit(x, y, verbose=0, callbacks=rt.callbacks()),
    ]
    for each in tries if several else []:
        try:
            each()
            found["errors"].append("no error")
        except Exception as error:
            found["errors"].append(str(error))
    return found
