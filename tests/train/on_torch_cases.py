# SPDX-License-Identifier: Apache-2.0
"""Programs of Keras on PyTorch for test_on_torch.py: on_torch_cases.py CASES, of which each prints a line."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

os.environ["KERAS_BACKEND"] = "torch"

import keras
import numpy as np

import rdmatensor
import rdmatensor.train as rt
from rdmatensor.train.keras import pauses

BATCH, STEPS, EPOCHS = 8, 4, 2
KILLED = 3


def data(seed: int = 0) -> tuple[Any, Any]:
    x = np.random.default_rng(seed).normal(size=(BATCH * STEPS * rt.size(), 6)).astype("float32")
    return x, x.sum(-1, keepdims=True)


def model(optimizer: Any, *more: Any, seed: int = 1) -> Any:
    keras.utils.set_random_seed(seed)
    layers = [keras.Input((6,)), keras.layers.Dense(12, activation="tanh"), *more]
    built = keras.Sequential([*layers, keras.layers.Dense(1)])
    built.compile(optimizer, loss="mse", metrics=["mae"])
    return built


def weights(of: Any) -> np.ndarray:
    return np.concatenate([np.ravel(each) for each in of.get_weights()])


def fit(of: Any, *callbacks: Any, **more: Any) -> dict[str, Any]:
    of_process = rt.shard(data())
    named = {"batch_size": BATCH, "epochs": EPOCHS, "shuffle": False, "verbose": 0} | more
    given = [*rt.callbacks(), *callbacks]
    history: dict[str, Any] = of.fit(*of_process, callbacks=given, **named).history
    return history


def alone(optimizer: Any) -> tuple[Any, dict[str, Any]]:
    """One process with the batches of all, without us."""
    of = model(optimizer)
    named = {"batch_size": BATCH * rt.size(), "epochs": EPOCHS, "shuffle": False, "verbose": 0}
    return weights(of.fit(*data(), **named).model), of.history.history


def of_all(values: Any) -> np.ndarray:
    """One after the other."""
    group = rt.init().group
    assert group is not None
    return group.all_gather(values)


def everywhere(values: Any) -> None:
    """All processes have these."""
    rows = of_all(np.asarray(values)[None])
    np.testing.assert_array_equal(rows, rows[:1].repeat(rt.size(), 0))


def fails(kind: type[Exception], words: str, action: Callable[[], Any]) -> None:
    try:
        action()
    except kind as error:
        assert words in str(error), error
        return
    raise AssertionError(f"no {kind.__name__}")


def equal() -> None:
    for make in (
        lambda: keras.optimizers.SGD(0.05, momentum=0.9),
        lambda: keras.optimizers.Adam(0.01, global_clipnorm=0.1),
        lambda: keras.optimizers.Adam(0.01, gradient_accumulation_steps=2),
        lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.05)),
    ):
        expected, logs = alone(make())
        of = model(rt.distribute(make(), rt.sync.AllReduce(bucket_bytes=100)), seed=1 + rt.rank())
        history = fit(of)
        everywhere(weights(of))
        np.testing.assert_allclose(weights(of), expected, atol=1e-5)
        for name, values in logs.items():
            np.testing.assert_allclose(history[name], values, rtol=1e-4)


# Where the batches of all begin, are divided between two processes, and end.
SPLITS = [(0, 8, 16), (16, 24, 28), (28, 29, 34), (34, 37, 40)]
TIME = 5


def weighed() -> None:
    """Losses are weighed by what they are means of: N processes train what one does with whole batches."""
    numbers = np.random.default_rng(8)
    x = numbers.normal(size=(40, 6)).astype("f")
    y, weight = numbers.normal(size=(40, 1)).astype("f"), numbers.uniform(0.1, 3, 40).astype("f")
    lengths = numbers.integers(1, TIME + 1, 40)
    words = np.where(np.arange(TIME) < lengths[:, None], numbers.integers(1, 9, (40, TIME)), 0)
    series = numbers.normal(size=(40, TIME, 1)).astype("f")
    losses = [
        keras.losses.MeanSquaredError(reduction=each) for each in ("sum", "mean_with_sample_weight")
    ]
    own: Any = lambda a, b: keras.ops.mean(keras.ops.square(a - b))  # noqa: E731
    regularizer = keras.regularizers.L2(0.1)
    for name, layers, columns, loss in (
        ("rows", [keras.layers.Dense(1, kernel_regularizer=regularizer)], (x, y), "mse"),
        ("sum", [keras.layers.Dense(1)], (x, y), losses[0]),
        ("weights", [keras.layers.Dense(1)], (x, y, weight), losses[1]),
        ("number", [keras.layers.Dense(1)], (x, y), own),
        ("mask", [keras.layers.Embedding(9, 4, mask_zero=True), keras.layers.Dense(1)],
         (words, series), "mse"),
        ("outputs", [], (x, {"a": y, "b": y}), {"a": losses[0], "b": "mae"}),
    ):  # fmt: skip
        results = [_of_splits(layers, columns, loss, apart) for apart in (False, True)]
        (expected, logs), (found, history) = results
        everywhere(found)
        np.testing.assert_allclose(found, expected, atol=1e-5, err_msg=name)
        for key, values in logs.items():
            np.testing.assert_allclose(history[key], values, rtol=1e-4, err_msg=f"{name}: {key}")


def _of_splits(layers: list[Any], columns: Any, loss: Any, apart: bool) -> Any:
    """The weights and logs after training on batches: those of all, or this process's parts of them."""
    ends = [each[rt.rank() : rt.rank() + 2] if apart else each[::2] for each in SPLITS]

    def batches() -> Any:
        while True:
            for start, end in ends:
                yield keras.tree.map_structure(lambda each, s=slice(start, end): each[s], columns)

    keras.utils.set_random_seed(1)
    inputs = keras.Input(columns[0].shape[1:], dtype=columns[0].dtype)
    if isinstance(loss, dict):
        outputs: Any = {each: keras.layers.Dense(1, name=each)(inputs) for each in loss}
    else:
        outputs = keras.Sequential([type(each).from_config(each.get_config()) for each in layers])(
            inputs
        )
    of, optimizer = keras.Model(inputs, outputs), keras.optimizers.SGD(0.002)
    of.compile(rt.distribute(optimizer) if apart else optimizer, loss=loss)
    callbacks = rt.callbacks() if apart else []
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)  # nothing is amiss
        history = of.fit(
            batches(), steps_per_epoch=len(SPLITS), epochs=2, verbose=0, callbacks=callbacks
        )
    return weights(of), history.history


def synchronizers() -> None:
    expected, _ = alone(keras.optimizers.SGD(0.05))
    for sync, tolerance in (
        (rt.sync.LocalSGD(1), 1e-5),
        (rt.sync.LocalSGD(3), 0.2),
        (rt.sync.DiLoCo(4), 1.0),
        (rt.sync.AllReduce(compression="bfloat16"), 0.05),
        (rt.sync.TopK(0.5), 1.0),
    ):
        of = model(rt.distribute(keras.optimizers.SGD(0.05), sync))
        history = fit(of, validation_data=data(1))
        everywhere(weights(of))
        everywhere(history["val_loss"])
        np.testing.assert_allclose(weights(of), expected, atol=tolerance)
        assert history["loss"][-1] < history["loss"][0], (type(sync), history)


def statistics() -> None:
    """Of batches and of dropout: averaged, and different."""
    dropped = keras.layers.Dropout(0.5)
    of = model(rt.distribute("sgd"), keras.layers.BatchNormalization(), dropped)
    fit(of)
    everywhere(weights(of))
    own = int(dropped.seed_generator.state.numpy()[0])
    assert len(set(of_all(np.array([own])).tolist())) == rt.size()


def costs() -> None:
    """The operations of this process are counted by name, as on TensorFlow, and served."""
    import rdmatensor.metrics
    from rdmatensor._tools import watching

    before = rt.statistics()
    optimizer = keras.optimizers.SGD(0.05, name="counted")
    of = model(rt.distribute(optimizer, rt.sync.AllReduce(bucket_bytes=100)))

    class Late(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            time.sleep(0.05 * rt.rank())

    fit(of, Late())
    found = rt.statistics()
    assert (found["rank"], found["size"]) == (rt.rank(), rt.size())
    parts = [found["operations"][f"gradients {i} of 2 of counted"] for i in (1, 2)]
    assert [each["operations"] for each in parts] == [STEPS * EPOCHS] * 2, parts
    assert sum(each["bytes"] for each in parts) == STEPS * EPOCHS * 4 * weights(of).size
    assert sum(each["failed"] for each in found["operations"].values()) == 0
    for each in found["operations"].values():
        assert 0 <= each["waited_seconds"] <= each["seconds"]
    assert found["sent_bytes"] > before["sent_bytes"]
    assert 0 < found["exposed_seconds"] <= found["busy_seconds"]
    late = found["late"][1]["waited_seconds"] - before["late"][1]["waited_seconds"]
    assert rt.rank() == 1 or late > 0.04 * STEPS * EPOCHS
    endpoint = rdmatensor.metrics.serve(0)
    assert endpoint is not None
    reading = watching.read(endpoint.address)
    training = watching.view(endpoint.address, reading, reading).training
    assert {each["operation"] for each in training["operations"]} == found["operations"].keys()


def stops() -> None:
    """Also if one process only does."""

    class Stops(keras.callbacks.Callback):  # type: ignore[misc]
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.model.stop_training = rt.rank() == 1

    history = fit(model(rt.distribute("sgd")), Stops(), epochs=5)
    assert len(history["loss"]) == 1


def stops_between() -> None:
    """What a callback ends between two steps in one process ends in all, after the same step."""

    class Stops(keras.callbacks.Callback):  # type: ignore[misc]
        steps = 0

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.steps += 1
            self.model.stop_training |= rt.rank() == 1 and batch == 1

    def stopped() -> tuple[int, int]:
        counted, of = Stops(), model(rt.distribute("sgd"))
        epochs = len(fit(of, counted, epochs=5)["loss"])
        everywhere(weights(of))
        everywhere([counted.steps, int(of.optimizer.iterations)])
        return epochs, counted.steps

    often = pauses._APART
    pauses._APART = 0.0  # after each step
    try:
        assert stopped() == (1, 3)
    finally:
        pauses._APART = often
    assert stopped()[0] == 1
    assert stopped_by_nan() == [1, STEPS]


def stopped_by_nan() -> list[int]:
    """A value of one process stops the others, too."""
    x, y = data()
    x[BATCH * rt.size() * 2 + 1] = np.nan  # in the third batch of rank 1
    of = model(rt.distribute("sgd"))
    named: dict[str, Any] = {"batch_size": BATCH, "epochs": EPOCHS, "shuffle": False, "verbose": 0}
    given = [*rt.callbacks(), keras.callbacks.TerminateOnNaN()]
    history = of.fit(*rt.shard((x, y)), callbacks=given, **named).history
    return [len(history["loss"]), int(of.optimizer.iterations)]


def table() -> None:
    """What each process did: rank 0 prints it at the end of fit, unless that is to be silent."""
    for verbose in (2, 0):
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            fit(model(rt.distribute("sgd")), verbose=verbose)
        lines = [each.split() for each in said.getvalue().splitlines()]
        rows = [each[:2] for each in lines if each[:1] in (["0"], ["1"])]
        shown = bool(verbose) and rt.rank() == 0
        assert rows == ([[str(rank), str(STEPS * EPOCHS)] for rank in range(2)] if shown else [])
        assert any(each[:3] == ["rank", "steps", "examples/s"] for each in lines) == shown


def data_sets() -> None:
    """Batches that a program makes, and rows of tensors."""
    import torch

    class Numbers(keras.utils.PyDataset):  # type: ignore[misc]
        def __len__(self) -> int:
            return 5

        def __getitem__(self, index: int) -> Any:
            return np.full((2, 6), index), np.full((2, 1), index)

    found = [int(x[0, 0]) for x, _ in (rt.shard(Numbers())[i] for i in range(2))]
    assert found == [rt.rank(), rt.rank() + rt.size()]
    assert rt.shard(torch.arange(5)).tolist() == [rt.rank(), rt.rank() + rt.size()]
    fails(rdmatensor.UsageError, "other data", lambda: rt.shard(np.arange(6) + 100 * rt.rank()))


def misuse() -> None:
    usage = rdmatensor.UsageError
    fails(usage, "is not distributed", lambda: fit(model("sgd")))
    extra = model(rt.distribute("sgd"))
    extra.others = {"second": keras.optimizers.SGD(0.1)}
    fails(usage, "is not distributed", lambda: fit(extra))
    for sync in (rt.sync.LocalSGD(2), rt.sync.TopK(0.5)):
        keep = rt.distribute(keras.optimizers.SGD(0.1), sync)
        fails(usage, f"serves {keep.name} already", partial(rt.distribute, "sgd", sync))
        fails(usage, "is distributed already", partial(rt.distribute, keep))
    of = model(rt.distribute("sgd"), seed=1 + rt.rank())
    fails(usage, "begin with different weights", lambda: of.train_on_batch(*data()))
    rt.broadcast_variables(of)
    of.train_on_batch(*rt.shard(data()))
    steps = rt.distribute("sgd")
    fails(usage, "batches in an epoch", lambda: fit(model(steps), steps_per_epoch=1 + rt.rank()))
    rates = rt.distribute("sgd")

    class Differs(keras.callbacks.Callback):  # type: ignore[misc]
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.model.optimizer.learning_rate = 0.1 * (1 + rt.rank())

    fails(usage, "learning rates differ", lambda: fit(model(rates), Differs()))
    differs = rt.distribute(keras.optimizers.SGD(0.1, momentum=0.1 * rt.rank()))
    fails(rdmatensor.RdmaError, "momentum", lambda: fit(model(differs)))
    first = rt.distribute("sgd")
    copies = [type(first).from_config(first.get_config()) for _ in range(3)]
    fails(usage, "from the configuration", lambda: fit(model(copies[0])))
    fails(usage, "from the configuration", lambda: model(copies[1]).train_on_batch(*data()))
    fit(model(rt.distribute(copies[2])))
    fails(rdmatensor.Unsupported, "backup", lambda: rt.callbacks(backup="folder"))
    fails(rdmatensor.Unsupported, "evaluate", lambda: rt.evaluate)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        uneven = model(rt.distribute("sgd", rt.sync.LocalSGD(1)))
        x, y = data()
        rows = slice(0, 2 * (BATCH - rt.rank()))
        named: dict[str, Any] = {"batch_size": BATCH - rt.rank(), "verbose": 0}
        uneven.fit(x[rows], y[rows], callbacks=rt.callbacks(), **named)
    assert any("14 to 16 examples" in str(each.message) for each in said), said


def lost() -> None:
    """A process that leaves in the middle ends the others' fit with an error that names it."""

    class Leaves(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if rt.rank() == 1 and batch == 2:
                rt.shutdown()
                print("left has ended", flush=True)
                os._exit(0)

    of = model(rt.distribute("sgd"))
    fails(rdmatensor.ConnectionFailure, "member 1", lambda: fit(of, Leaves()))


def main() -> None:
    """Run the cases."""
    rt.init(timeout=60.0)
    for name in sys.argv[1].split():
        globals()[name]()
        print(f"{name} has ended", flush=True)


if __name__ == "__main__":
    main()
