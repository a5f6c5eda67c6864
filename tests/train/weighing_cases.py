# SPDX-License-Identifier: Apache-2.0
"""Cases of cases.py in which processes have unequal parts of each batch."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import rdmatensor.train as rt
from rdmatensor import UsageError

# Where the batches of all begin, are divided between two processes, and end.
SPLITS = [(0, 8, 16), (16, 24, 28), (28, 29, 34), (34, 37, 40)]
# The second process has no part of the last two, nor of the one before.
UNEVEN = [(0, 8, 16), (16, 21, 24), (24, 30, 30), (30, 34, 34), (34, 40, 40)]
ROWS, TIME = 40, 6
_NUMBERS = np.random.default_rng(8)
X = _NUMBERS.standard_normal((ROWS, TIME)).astype("f")
Y = _NUMBERS.standard_normal((ROWS, 1)).astype("f")
SERIES = _NUMBERS.standard_normal((ROWS, TIME, 1)).astype("f")
WEIGHTS = _NUMBERS.uniform(0.1, 3, ROWS).astype("f")
LENGTHS = _NUMBERS.integers(1, TIME + 1, ROWS)
WORDS = np.where(np.arange(TIME) < LENGTHS[:, None], _NUMBERS.integers(1, 9, (ROWS, TIME)), 0)


def _parts(splits: list[tuple[int, int, int]] = SPLITS) -> list[slice]:
    """The rows of this process in each batch of which it has some."""
    run = rt.init()
    ends = [(start, middle) if run.rank == 0 else (middle, end) for start, middle, end in splits]
    ends = ends if run.size > 1 else [(start, end) for start, _, end in splits]
    return [slice(*each) for each in ends if each[0] < each[1]]


def _batches(*columns: Any, splits: list[tuple[int, int, int]] = SPLITS) -> Any:
    """A dataset of this process's batches."""
    # Not in the generator: TensorFlow may begin that after the fit that it is for, when the group was left.
    parts = _parts(splits)

    def generate() -> Any:
        for rows in parts:
            yield tf.nest.map_structure(lambda each, rows=rows: each[rows], columns)

    spec = tf.nest.map_structure(
        lambda each: tf.TensorSpec([None, *each.shape[1:]], each.dtype), columns
    )
    return tf.data.Dataset.from_generator(generate, output_signature=spec)


class _Counted(keras.utils.PyDataset):  # type: ignore[misc]
    """The same, of a length that Keras knows."""

    def __init__(self, *columns: Any, splits: list[tuple[int, int, int]]) -> None:
        super().__init__()
        self._columns, self._rows = columns, _parts(splits)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Any:
        return tuple(each[self._rows[index]] for each in self._columns)


def _one_series() -> Any:
    """All steps of a batch as one series, whose length differs between processes; alone, as many series."""
    parts, alone = _parts(), rt.size() == 1

    def generate() -> Any:
        for rows in parts:
            steps = SERIES[rows, 0]
            one = steps[:, None] if alone else steps[None]
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
    model: Any,
    data: Any,
    loss: Any,
    sync: Any = None,
    accumulated: int | None = None,
    uneven: bool = False,
    rate: Any = 0.02,
    **more: Any,
) -> Any:
    optimizer = keras.optimizers.SGD(rate, gradient_accumulation_steps=accumulated)
    model.compile(rt.distribute(optimizer, sync), loss=loss, **more)
    ends = _Ends()
    history = model.fit(
        data,
        epochs=2,
        shuffle=False,
        verbose=0,
        callbacks=[*rt.callbacks(uneven=uneven), ends],
    ).history
    return {
        "weights": _flat(model),
        "logs": {k: v for k, v in history.items() if k != "own"},
        "state": [float(x) for each in model.non_trainable_variables for x in np.ravel(each)],
        "steps": ends.seen,
    }


class _Ends(keras.callbacks.Callback):  # type: ignore[misc]
    """Which batches have ended."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[int] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.seen.append(batch)


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


def _batches_alone() -> Any:
    """Of a model that no fit() has trained."""
    model = _dense()
    model.compile(rt.distribute(keras.optimizers.SGD(0.02)), loss="mse")
    rt.broadcast_variables(model)
    for x, y in _batches(X, Y):
        model.train_on_batch(x, y)
    return {"weights": _flat(model), "logs": {}}


def _uneven(model: Any, kind: Any = _batches, **more: Any) -> Any:
    """Trains where the second process has two batches and the first one five."""
    return _fit(model, kind(X, Y, splits=UNEVEN), "mse", uneven=True, **more)


class _Fails(keras.callbacks.Callback):  # type: ignore[misc]
    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        raise RuntimeError("the epoch has ended")


def _interrupted() -> Any:
    """How many steps fit takes, on data of three batches, after one with other callbacks has failed."""
    model = _dense()
    model.compile(rt.distribute(keras.optimizers.SGD(0.02)), loss="mse")
    for callbacks in ([*rt.callbacks(uneven=True), _Fails()], []):
        before = int(model.optimizer.iterations)
        with contextlib.suppress(RuntimeError):
            model.fit(X[:24], Y[:24], batch_size=8, verbose=0, callbacks=callbacks)
    return int(model.optimizer.iterations) - before


def _normalized() -> Any:
    inputs = keras.Input((TIME,))
    hidden = keras.layers.BatchNormalization(synchronized=True)(keras.layers.Dense(4)(inputs))
    return keras.Model(inputs, keras.layers.Dense(1)(hidden))


class _Taught(keras.Model):  # type: ignore[misc]
    """Follows its weights, and counts steps, in variables that are not trained."""

    def build(self, shape: Any) -> None:
        self.student, self.teacher = keras.layers.Dense(1), keras.layers.Dense(1, trainable=False)
        self.student.build(shape)
        self.teacher.build(shape)
        self.steps = self.add_weight(shape=(), dtype="int32", initializer="zeros", trainable=False)

    def call(self, x: Any) -> Any:
        return self.student(x)

    def train_step(self, data: Any) -> Any:
        logs = super().train_step(data)
        self.steps.assign_add(1)
        for old, new in zip(self.teacher.weights, self.student.weights, strict=True):
            old.assign(0.5 * old + 0.5 * new)
        return logs


def _taught() -> Any:
    model = _Taught(name="taught")
    model.build((None, TIME))
    return model


def _uneven_by_hand() -> Any:
    """As train.md says: a process without a batch takes an earlier one with weights of zeros."""
    model, optimizer = _dense(), keras.optimizers.SGD(0.02)
    rt.broadcast_variables(model.variables)
    loss_of = keras.losses.MeanSquaredError(reduction="mean_with_sample_weight")
    batches = list(_batches(X, Y, splits=UNEVEN))
    for step in range(int(rt.ops.all_reduce(len(batches), op="max"))):
        x, y = batches[min(step, len(batches) - 1)]
        weights = tf.fill([len(x)], float(step < len(batches)))
        with rt.GradientTape() as tape:
            loss = loss_of(y, model(x, training=True), sample_weight=weights)
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
    return {"weights": _flat(model), "logs": {}}


def weighed(names: list[str]) -> Any:
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
        "by weights": lambda: _fit(
            _dense(), _batches(*weighted), mse(reduction="mean_with_sample_weight")
        ),
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
        "two optimizers": _two_optimizers,
        "uneven tape": _uneven_by_hand,
        "uneven": lambda: _uneven(_dense(), metrics=["mae"]),
        "uneven, at once": lambda: _uneven(
            _dense(kernel_regularizer=keras.regularizers.L2(0.1)), steps_per_execution=2
        ),
        "uneven, counted at once": lambda: _uneven(_dense(), kind=_Counted, steps_per_execution=4),
        "uneven, normalized": lambda: _uneven(_normalized()),
        "uneven, eager": lambda: _uneven(_own(), run_eagerly=True),
        "uneven, teacher": lambda: _uneven(_taught(), kind=_Counted),
        "uneven, sharded": lambda: _uneven(_dense(), sync=rt.sync.Sharded()),
        "uneven, ahead": lambda: _uneven(_dense(), sync=rt.sync.Sharded(prefetch=True)),
        "uneven, accumulated": lambda: _uneven(_dense(), kind=_Counted, accumulated=2),
        "batches alone": _batches_alone,
        "tape": lambda: _by_hand(mse()),
    }  # fmt: skip
    found = {}
    for name in names:
        keras.utils.set_random_seed(4)
        found[name] = makers[name]()
    # What communicates rarely weighs nothing: one process may train alone between exchanges.
    model = _dense()
    model.compile(rt.distribute(keras.optimizers.SGD(0.02), rt.sync.PullGossip()), loss="mse")
    model.fit(_batches(X, Y).take(1 + rt.rank()), verbose=0, callbacks=rt.callbacks())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        _fit(_dense(), _batches(X, Y).take(2), "mse", rt.sync.LocalSGD(2), run_eagerly=True)
        found["warned"] = [str(each.message) for each in caught if "equally" in str(each.message)]
    found["interrupted"] = _interrupted()
    found["refused"] = _refused() if rt.size() > 1 else None
    return found


def _refused() -> Any:
    """What is said where numbers of batches may not differ."""
    says = []
    for data, sync, uneven in (
        (_Counted(X, Y, splits=UNEVEN), None, False),
        (_batches(X, Y, splits=UNEVEN), None, False),
        (_batches(X, Y, splits=UNEVEN), rt.sync.LocalSGD(2), True),
        (_batches(X, Y, splits=UNEVEN).take(1 - rt.rank()), None, True),
    ):
        try:
            _fit(_dense(), data, "mse", sync, uneven=uneven, run_eagerly=True)
            says.append("")
        except (UsageError, tf.errors.OpError) as error:
            says.append(f"{type(error).__name__}: {error}")
        rt.shutdown()
        rt.init()
    return says
