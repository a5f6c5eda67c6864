# SPDX-License-Identifier: Apache-2.0
"""Cases of cases.py in which processes have unequal parts of each batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import rdmatensor.train as rt

# Where the batches of all begin, are divided between two processes, and end.
SPLITS = [(0, 8, 16), (16, 24, 28), (28, 29, 34), (34, 37, 40)]
ROWS, TIME = 40, 6
_NUMBERS = np.random.default_rng(8)
X = _NUMBERS.standard_normal((ROWS, TIME)).astype("f")
Y = _NUMBERS.standard_normal((ROWS, 1)).astype("f")
SERIES = _NUMBERS.standard_normal((ROWS, TIME, 1)).astype("f")
WEIGHTS = _NUMBERS.uniform(0.1, 3, ROWS).astype("f")
LENGTHS = _NUMBERS.integers(1, TIME + 1, ROWS)
WORDS = np.where(np.arange(TIME) < LENGTHS[:, None], _NUMBERS.integers(1, 9, (ROWS, TIME)), 0)


def _parts() -> list[slice]:
    """The rows of this process in each batch."""
    run = rt.init()
    ends = [(start, middle) if run.rank == 0 else (middle, end) for start, middle, end in SPLITS]
    return [slice(*each) for each in (ends if run.size > 1 else [(s, e) for s, _, e in SPLITS])]


def _batches(*columns: Any) -> Any:
    """A dataset of this process's batches."""

    def generate() -> Any:
        for rows in _parts():
            yield tf.nest.map_structure(lambda each, rows=rows: each[rows], columns)

    spec = tf.nest.map_structure(
        lambda each: tf.TensorSpec([None, *each.shape[1:]], each.dtype), columns
    )
    return tf.data.Dataset.from_generator(generate, output_signature=spec)


def _one_series() -> Any:
    """All steps of a batch as one series, whose length differs between processes; alone, as many series."""

    def generate() -> Any:
        for rows in _parts():
            steps = SERIES[rows, 0]
            one = steps[None] if rt.size() > 1 else steps[:, None]
            yield one, one**2

    spec = tf.TensorSpec([None, None, 1], tf.float32)
    return tf.data.Dataset.from_generator(generate, output_signature=(spec, spec))


def _dense(**more: Any) -> Any:
    inputs = keras.Input((TIME,))
    return keras.Model(inputs, keras.layers.Dense(1, **more)(inputs))


def _masking() -> Any:
    inputs = keras.Input((TIME,), dtype="int32")
    words = keras.layers.Embedding(9, 4, mask_zero=True)(inputs)
    return keras.Model(inputs, keras.layers.Dense(1)(words))


def _classes() -> Any:
    inputs = keras.Input((TIME,), dtype="int32")
    return keras.Model(inputs, keras.layers.Dense(4)(keras.layers.Embedding(9, 3)(inputs)))


def _series() -> Any:
    inputs = keras.Input((None, 1))
    return keras.Model(inputs, keras.layers.Dense(1)(inputs))


def _two_outputs() -> Any:
    words, numbers = keras.Input((TIME,), dtype="int32"), keras.Input((TIME,))
    hidden = keras.layers.Embedding(9, 4, mask_zero=True)(words)
    outputs = {
        "a": keras.layers.Dense(1, name="a")(hidden),
        "b": keras.layers.Dense(1, name="b")(numbers),
    }
    return keras.Model([words, numbers], outputs)


class _Own(keras.Model):  # type: ignore[misc]
    """A training step as guides of Keras write it."""

    def train_step(self, data: Any) -> Any:
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(y=y, y_pred=self(x, training=True))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        return {"own": loss}


def _own() -> Any:
    inputs = keras.Input((TIME,))
    return _Own(inputs, keras.layers.Dense(1)(inputs), name="own")


class _Own2(keras.Model):  # type: ignore[misc]
    """A model with optimizers and losses of its own, as those of GANs."""

    def compile_with(self, **optimizers: Any) -> None:
        self.compile()
        self.kernels, self.biases = optimizers["kernels"], optimizers["biases"]
        self.of_rows, self.of_all = (
            keras.losses.MeanSquaredError(reduction=each) for each in ("mean", "sum")
        )

    def train_step(self, data: Any) -> Any:
        x, y = data
        kernel, bias = self.trainable_variables
        with tf.GradientTape(persistent=True) as tape:
            outputs = self(x, training=True)
            losses = self.of_rows(y, outputs), self.of_all(y, outputs)
        self.kernels.apply([tape.gradient(losses[0], kernel)], [kernel])
        self.biases.apply([tape.gradient(losses[1], bias)], [bias])
        return {"own": losses[0]}


def _two_optimizers() -> Any:
    inputs = keras.Input((TIME,))
    model = _Own2(inputs, keras.layers.Dense(1)(inputs), name="own2")
    model.compile_with(
        kernels=rt.distribute(keras.optimizers.SGD(0.02)),
        biases=rt.distribute(keras.optimizers.SGD(0.001)),
    )
    model.fit(_batches(X, Y), epochs=2, verbose=0, callbacks=rt.callbacks())
    return {"weights": _flat(model), "logs": {}}


def _fit(
    model: Any, data: Any, loss: Any, sync: Any = None, accumulated: int | None = None, **more: Any
) -> Any:
    optimizer = keras.optimizers.SGD(0.02, gradient_accumulation_steps=accumulated)
    model.compile(rt.distribute(optimizer, sync), loss=loss, **more)
    history = model.fit(data, epochs=2, verbose=0, callbacks=rt.callbacks()).history
    return {"weights": _flat(model), "logs": {k: v for k, v in history.items() if k != "own"}}


def _flat(model: Any) -> list[float]:
    return [float(x) for each in model.trainable_variables for x in np.ravel(each)]


def _by_hand(loss_of: Any) -> Any:
    model = _dense()
    rt.broadcast_variables(model.variables)
    optimizer = keras.optimizers.SGD(0.02)

    @tf.function(reduce_retracing=True)
    def step(x: Any, y: Any) -> None:
        with rt.GradientTape() as tape:
            loss = loss_of(y, model(x, training=True))
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)

    for x, y in _batches(X, Y):
        step(x, y)
    return {"weights": _flat(model), "logs": {}}


def weighed() -> Any:
    """Weights and logs after training, for losses that are divided by different things."""
    rt.init()
    mse = keras.losses.MeanSquaredError
    weighted = (X, Y, WEIGHTS)
    makers: dict[str, Callable[[], Any]] = {
        "rows": lambda: _fit(_dense(), _batches(X, Y), "mse", metrics=["mae"]),
        "regularized": lambda: _fit(
            _dense(kernel_regularizer=keras.regularizers.L2(0.1)), _batches(X, Y), "mse"
        ),
        "sum": lambda: _fit(_dense(), _batches(X, Y), mse(reduction="sum")),
        "weights": lambda: _fit(_dense(), _batches(*weighted), "mse"),
        "by weights": lambda: _fit(
            _dense(), _batches(*weighted), mse(reduction="mean_with_sample_weight")
        ),
        "mask": lambda: _fit(_masking(), _batches(WORDS, SERIES), "mse"),
        "mask by weights": lambda: _fit(
            _masking(),
            _batches(WORDS, SERIES, WEIGHTS[:, None] * np.ones((1, TIME), "f")),
            mse(reduction="mean_with_sample_weight"),
        ),
        "ignored class": lambda: _fit(
            _classes(),
            _batches(WORDS, WORDS % 4),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=0),
        ),
        "lengths": lambda: _fit(_series(), _one_series(), "mse") | {"logs": {}},  # of rows
        "number": lambda: _fit(_dense(), _batches(X, Y), lambda y, p: tf.reduce_mean((y - p) ** 2)),
        "outputs": lambda: _fit(
            _two_outputs(),
            _batches((WORDS, X), {"a": SERIES, "b": Y}),
            {"a": "mae", "b": mse(reduction="sum")},
            loss_weights={"a": 0.7, "b": 0.2},
        ),
        "own step": lambda: _fit(_own(), _batches(X, Y), "mse"),
        "eager": lambda: _fit(_masking(), _batches(WORDS, SERIES), "mse", run_eagerly=True),
        "steps at once": lambda: _fit(_dense(), _batches(X, Y), "mse", steps_per_execution=2),
        "sharded": lambda: _fit(_dense(), _batches(X, Y), "mse", rt.ShardedOptimizer()),
        "accumulated": lambda: _fit(_dense(), _batches(X, Y), "mse", accumulated=2),
        "two optimizers": _two_optimizers,
        "tape": lambda: _by_hand(mse()),
        "tape and sum": lambda: _by_hand(mse(reduction="sum")),
    }  # fmt: skip
    found = {}
    for name, make in makers.items():
        keras.utils.set_random_seed(4)
        found[name] = make()
    # What communicates rarely weighs nothing: one process may train alone between exchanges.
    model = _dense()
    model.compile(rt.distribute(keras.optimizers.SGD(0.02), rt.PullGossip()), loss="mse")
    model.fit(_batches(X, Y).take(1 + rt.rank()), verbose=0, callbacks=rt.callbacks())
    return found
