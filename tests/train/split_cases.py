# SPDX-License-Identifier: Apache-2.0
"""What the processes of test_split.py do. See cases.py."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import rdmatensor.train as rt
from rdmatensor.errors import UsageError
from rdmatensor.train.backend.tensorflow import operations
from rdmatensor.train.backend.tensorflow.equal import broadcast_variables
from rdmatensor.train.tensor_parallel.slices import strip_of

ROWS, SIDE, CLASSES = 64, 6, 4
SMALLEST = 200  # weights of a layer that is large here


def _data() -> tuple[Any, Any]:
    numbers = np.random.default_rng(3)
    x = numbers.standard_normal((ROWS, SIDE, SIDE, 1)).astype("f")
    return x, numbers.integers(0, CLASSES, ROWS)


def _network(kind: str) -> Any:
    layers, dense = keras.layers, keras.layers.Dense
    inputs = keras.Input((SIDE, SIDE, 1))
    begin = [inputs, layers.Conv2D(3, 3, activation="relu", name="convolution"), layers.Flatten()]
    head = dense(CLASSES, name="head", dtype="float32")
    if kind == "sequential":
        middle = [dense(24, activation="relu", name="fc1"), layers.Dropout(0.0)]
        return keras.Sequential([*begin, *middle, dense(20, activation="tanh", name="fc2"), head])
    if kind == "odd":
        # Widths that no group divides, and an activation that needs whole rows.
        middle = [dense(23, activation="softmax", name="fc1"), layers.LayerNormalization()]
        return keras.Sequential([*begin, *middle, dense(19, activation="gelu", name="fc2"), head])
    if kind == "regularized":
        l2, l1 = keras.regularizers.L2(0.03), keras.regularizers.L1(0.02)
        # Before Keras 3.14 it is a sum over what a process has of a batch, and not a mean.
        version = tuple(int(each) for each in keras.__version__.split(".")[:2])
        activity = keras.regularizers.L2(0.01 if version >= (3, 14) else 0.0)
        fc1 = dense(23, "relu", name="fc1", kernel_regularizer=l2, bias_regularizer=l1,
                    kernel_constraint=keras.constraints.MaxNorm(0.9))  # fmt: skip
        fc2 = dense(20, name="fc2", kernel_regularizer=l1, bias_regularizer=l2,
                    activity_regularizer=activity)  # fmt: skip
        fc3 = dense(22, "relu", name="fc3", activity_regularizer=activity)
        return keras.Sequential([*begin, fc1, fc2, fc3, head])
    if kind == "sequence":
        middle = [
            layers.Reshape((4, 12)),
            dense(30, name="fc1"),
            layers.ReLU(),
            dense(18, name="fc2"),
        ]
        return keras.Sequential([*begin, *middle, layers.Flatten(), head])
    x = begin[2](begin[1](inputs))
    if kind == "graph":
        # One that is used by two, one that is used twice, and a model in the model.
        left, right = dense(22, "gelu", name="left")(x), dense(21, name="right")(x)
        both = layers.Concatenate()([left, right])
        inner = keras.Sequential(
            [keras.Input((43,)), dense(20, "relu", name="in1"), dense(16, name="in2")]
        )
        shared = dense(16, "tanh", name="shared")
        x = inner(both)
        x = layers.Add()([shared(shared(x)), x])
        return keras.Model(inputs, head(layers.Dropout(0.0)(x)))
    raise ValueError(kind)


def split_cases(calls: dict[str, list[Any]]) -> Any:
    """Several cases, one after the other: each name has a function and its arguments."""
    return {name: globals()[case](**arguments) for name, (case, arguments) in calls.items()}


def split_fit(
    network: str = "sequential",
    optimizer: str = "SGD(0.1, momentum=0.9)",
    split: dict[str, Any] | None = None,
    policy: str = "float32",
    eager: bool = False,
    at_once: int = 1,
    epochs: int = 2,
    backup: str | None = None,
    stop_after: int | None = None,
    sync: str = "AllReduce()",
    pretend: int = 0,
    thorough: bool = False,
    checkpoint: str | None = None,
) -> Any:
    """Training, and what the whole model is afterwards. Alone, a process takes whole batches.

    With `pretend`, a process takes the examples of a group of so many. A `thorough` case evaluates and
    predicts as well. Rank 0 keeps each epoch in `checkpoint`.
    """
    run = rt.init()
    keras.config.set_dtype_policy(policy)
    keras.utils.set_random_seed(5 + run.rank)  # what is the same afterwards was made the same
    model = _network(network)
    if split is not None:
        model = rt.split(model, **{"smallest": SMALLEST, **split})
    model.compile(
        rt.distribute(eval(f"keras.optimizers.{optimizer}"), eval(f"rt.sync.{sync}")),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        run_eagerly=eager,
        steps_per_execution=at_once,
    )
    x, y = rt.shard(_data())
    batch = 16 // run.size
    if pretend:
        mine = np.flatnonzero(np.arange(ROWS) % (pretend * run.size) // pretend == run.rank)
        x, y = _data()[0][mine], _data()[1][mine]

    class Stop(keras.callbacks.Callback):  # type: ignore[misc]
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            if epoch == stop_after:
                raise InterruptedError

    own: list[Any] = [Stop()]
    if checkpoint is not None:
        own.append(rt.on_rank_0(keras.callbacks.ModelCheckpoint(checkpoint)))
    try:
        history = model.fit(
            *(x, y),
            batch_size=batch,
            shuffle=False,
            epochs=epochs,
            callbacks=[*rt.callbacks(backup=backup), *own],
            verbose=0,
        )
    except InterruptedError:
        return "stopped"
    found = {
        "losses": history.history["loss"],
        "weights": [],
        "strips": {
            each.path: list(each.shape)
            for each in [*model.variables, *model.optimizer.variables]
            if strip_of(each) is not None
        },
    }
    if thorough:
        evaluated = model.evaluate(x, y, batch_size=batch, verbose=0)
        found["evaluated"] = [
            float(each) for each in rt.ops.all_reduce(tf.constant(evaluated), op="mean")
        ]
        found["predicted"] = np.ravel(model.predict(x, batch_size=batch, verbose=0)).tolist()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.keras")
        model.save(path)
        if run.rank == 0:
            found["weights"] = whole_weights(str(path))
        if run.rank == 0 and thorough:
            again = np.ravel(keras.models.load_model(path).predict_on_batch(x))
            found["loaded"] = float(np.abs(again - found["predicted"]).max())
    keras.config.set_dtype_policy("float32")
    return found


def whole_weights(path: str) -> list[float]:
    """All weights of a saved model and its optimizer."""
    whole = keras.models.load_model(path)
    variables = [*whole.weights, *whole.optimizer.variables]
    return [float(x) for each in variables if "seed" not in each.path for x in np.ravel(each)]


def load_without_us(path: str) -> list[float]:
    """The weights of a saved model, in a process that cannot import rdmatensor any more."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "rdmatensor"]:
        sys.modules[name] = None  # type: ignore[assignment]
    return whole_weights(path)


def split_dropout() -> Any:
    """Outputs of equal examples with dropout between the strips, and without."""
    run = rt.init()
    keras.utils.set_random_seed(5)
    dense, drop = keras.layers.Dense, keras.layers.Dropout(0.5)
    model = keras.Sequential(
        [keras.Input((30,)), dense(40, name="fc1"), drop, dense(8, name="fc2")]
    )
    model = rt.split(model, smallest=SMALLEST)
    x = np.ones((4000, 30), "f")
    dropped = np.asarray(model(x, training=True))
    plain = np.asarray(model(x[:4]))
    return {
        "plain": plain[0].tolist(),
        "mean": dropped.mean(0).tolist(),
        "error": (dropped.std(0) / np.sqrt(len(x))).tolist(),
        "spread": dropped.var(0).tolist(),
        "seed": np.asarray(drop.seed_generator.state).tolist(),
        "rank": run.rank,
    }


def split_memory() -> Any:
    """The largest operation while a model is split and begins to train, and resident shared memory."""
    run = rt.init()
    start, largest = operations.start, 0

    def measured(handle: Any, kind: Any, tensors: Any, *more: Any, **named: Any) -> Any:
        nonlocal largest
        largest = max(largest, sum(int(tf.size(x)) * x.dtype.size for x in tensors))
        return start(handle, kind, tensors, *more, **named)

    def resident() -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssShmem:"))

    before = resident()
    dense = keras.layers.Dense
    kept = [dense(1000, name=f"kept{i}") for i in range(4)]
    model = keras.Sequential(
        [keras.Input((1000,)), *kept, dense(8000, name="fc1"), dense(1000, name="fc2")]
    )
    made = resident()
    operations.start = measured
    try:
        model = rt.split(model, layers={"fc1": "column", "fc2": "row"})
        broadcast_variables(run, model.variables, 0, "the model")
        with tempfile.TemporaryDirectory() as folder:
            model.save_weights(Path(folder, "model.weights.h5"))
    finally:
        operations.start = start
    rt.ops.barrier()
    return {
        "own": sum(int(np.prod(each.shape)) * 4 for each in model.variables),
        "largest": largest,
        "made": made - before,
        "split": resident() - before,
    }


def split_infinity() -> Any:
    """float16 with an overflow that only one process sees in its gradients: all skip the step."""
    run = rt.init()
    keras.utils.set_random_seed(2)
    keras.config.set_dtype_policy("mixed_float16")
    dense = keras.layers.Dense
    model = keras.Sequential([keras.Input((8,)), dense(10, name="fc1"), dense(2, name="fc2")])
    model = rt.split(model, smallest=1, layers={"fc1": "column", "fc2": "row"})
    model.compile(rt.distribute(keras.optimizers.SGD(0.01)), loss="mse")
    optimizer = model.optimizer
    optimizer.build(model.trainable_variables)
    gradients = [tf.ones(each.shape) * 0.01 for each in model.trainable_variables]
    optimizer.apply(gradients)
    if run.rank == run.size - 1:
        gradients[0] = gradients[0] * np.inf  # a strip, which no other process has
    optimizer.apply(gradients)
    keras.config.set_dtype_policy("float32")
    return {
        "scale": float(optimizer.dynamic_scale.numpy()),
        "steps": int(optimizer.inner_optimizer.iterations.numpy()),
        "finite": all(np.isfinite(np.asarray(each)).all() for each in model.weights),
    }


def split_tape() -> Any:
    """A training loop by hand."""
    run = rt.init()
    keras.utils.set_random_seed(5 + run.rank)
    model = rt.split(_network("sequential"), smallest=SMALLEST, group_size=min(run.size, 2))
    rt.broadcast_variables(model.variables)
    optimizer = keras.optimizers.SGD(0.1)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @tf.function
    def step(x: Any, y: Any) -> Any:
        with rt.GradientTape() as tape:
            loss = loss_of(y, model(x, training=True))
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        return loss

    x, y = rt.shard(_data())
    return [float(rt.ops.all_reduce(step(x, y), op="mean")) for _ in range(4)]


def split_errors() -> Any:
    """What programs are told that ask for what cannot be."""
    rt.init(timeout=60)
    dense = keras.layers.Dense

    def built() -> Any:
        layers = [keras.Input((8,)), dense(10, name="fc1"), dense(2, name="fc2")]
        return keras.Sequential(layers)

    whole = keras.regularizers.OrthogonalRegularizer()
    odd = [keras.Input((8,)), dense(9, kernel_regularizer=whole, name="fc1")]

    class Own(keras.Model):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.fc1 = dense(10)

        def call(self, x: Any) -> Any:
            return self.fc1(x)

    own = Own()
    own(np.zeros((1, 8), "f"))

    def trained(optimizer: Any, sync: Any, **more: Any) -> None:
        model = rt.split(built(), smallest=20, **more)
        rt.distribute(optimizer, sync).build(model.trainable_variables)

    def stale() -> None:
        model = built()
        model.compile("sgd")
        model.optimizer.build(model.trainable_variables)
        rt.split(model, smallest=20)

    def twice() -> None:
        rt.split(rt.split(built(), smallest=20))

    def saved() -> None:
        model = rt.split(built(), smallest=20)
        keras.saving.save_model(model, Path(tempfile.gettempdir(), "never.keras"))

    tries = {
        "group": lambda: rt.split(built(), group_size=3),
        "one": lambda: rt.split(built(), group_size=1),
        "period": lambda: rt.split(built(), period=0),
        "small": lambda: rt.split(built()),
        "name": lambda: rt.split(built(), layers={"fc9": "row"}),
        "mode": lambda: rt.split(built(), layers={"fc1": "both"}),  # type: ignore[dict-item]
        "narrow": lambda: rt.split(
            keras.Sequential([keras.Input((8,)), dense(1, name="fc1")]), layers={"fc1": "column"}
        ),
        "regularizer": lambda: rt.split(keras.Sequential(odd), layers={"fc1": "column"}),
        "unbuilt": lambda: rt.split(keras.Sequential([dense(3)])),
        "subclass": lambda: rt.split(own, smallest=20),
        "twice": twice,
        "stale": stale,
        "lamb": lambda: trained(keras.optimizers.Lamb(), None),
        "sync": lambda: trained("sgd", rt.sync.LocalSGD(4)),
        "export": lambda: rt.split(built(), smallest=20).export("never"),
        "saved": saved,
    }
    found = {}
    for name, act in tries.items():
        try:
            act()
            found[name] = "no error"
        except UsageError as error:
            found[name] = str(error)
    return found
