# SPDX-License-Identifier: Apache-2.0
"""What processes of the tests have when Keras's fit ends, whatever callbacks and optimizers do."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import rdmatensor.train as rt
from rdmatensor import UsageError
from rdmatensor.train.backend.tensorflow import operations

__all__ = ["kept_twice", "together", "warmed", "with_averages"]
_L, _O = keras.layers, keras.optimizers
APART: dict[str, Any] = {
    "AllReduce": rt.sync.AllReduce,
    "Sharded": rt.sync.Sharded,
    "LocalSGD": lambda: rt.sync.LocalSGD(3),
    "Hierarchical": lambda: rt.sync.Hierarchical(host_size=1, between=rt.sync.LocalSGD(2)),
}


def _data() -> tuple[Any, Any]:
    numbers = np.random.default_rng(3)
    x = numbers.standard_normal((48, 6)).astype("f")
    return x, (x @ numbers.standard_normal((6, 1))).astype("f")


def _model(hidden: int = 5, frozen: bool = False) -> Any:
    keras.utils.set_random_seed(5 + rt.rank())
    first = _L.Dense(hidden, activation="tanh", trainable=not frozen)
    return keras.Sequential([keras.Input((6,)), first, _L.Dense(1)])


def _flat(model: Any) -> list[float]:
    return [float(x) for each in model.weights for x in np.ravel(tf.convert_to_tensor(each))]


def _fit(model: Any, *callbacks: Any, epochs: int = 3, **more: Any) -> Any:
    x, y = _data()
    return model.fit(*rt.shard((x, y)), batch_size=8, epochs=epochs, shuffle=False, verbose=0,
                     validation_data=(x, y), callbacks=[*rt.callbacks(**more), *callbacks])  # fmt: skip


def _says(act: Any) -> str:
    try:
        act()
        return ""
    except UsageError as error:
        return str(error)


class _Call(keras.callbacks.Callback):  # type: ignore[misc]
    """Calls functions at some places."""

    def __init__(self, **places: Any) -> None:
        super().__init__()
        for place, act in places.items():
            setattr(self, place, lambda *_, act=act, **__: act(self.model))


class _Adversaries(keras.Model):  # type: ignore[misc]
    """Two parts, each with an optimizer."""

    def __init__(self) -> None:
        super().__init__()
        self.makes = keras.Sequential([keras.Input((6,)), _L.Dense(6)])
        self.tells = keras.Sequential([keras.Input((6,)), _L.Dense(1)])
        self.built = True

    def compile(self, one: Any, other: Any, run_eagerly: bool) -> None:
        super().compile(run_eagerly=run_eagerly)
        self.one, self.others = one, {"tells": [other]}

    def train_step(self, data: Any) -> Any:
        x, y = data
        for optimizer, part in ((self.others["tells"][0], self.tells), (self.one, self.makes)):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(self.tells(self.makes(x)) - y))
            wanted = part.trainable_weights
            optimizer.apply_gradients(zip(tape.gradient(loss, wanted), wanted, strict=True))
        return {"loss": loss}

    def test_step(self, data: Any) -> Any:
        return {"loss": tf.reduce_mean(self.tells(self.makes(data[0])))}


def _best(sync: Any) -> Any:
    """The weights after fit, those that were validated in the best epoch, and the losses."""
    model, seen = _model(), []
    model.compile(rt.distribute(_O.SGD(0.9), sync), loss="mse", run_eagerly=_in_python(sync))
    stop = keras.callbacks.EarlyStopping("val_loss", patience=2, restore_best_weights=True)
    look = _Call(on_test_end=lambda model: seen.append(_flat(model)))
    history = _fit(model, stop, look, epochs=5)
    return [_flat(model), seen[stop.best_epoch], history.history["val_loss"]]


def _adversaries(sync: Any, both: bool = True) -> Any:
    model = _Adversaries()
    other, own = _O.SGD(0.02), sync()
    one = rt.distribute(_O.Adam(0.01), own)
    model.compile(one, rt.distribute(other, sync()) if both else other, _in_python(own))
    says = _says(lambda: _fit(model, epochs=2))
    return [_flat(model), says]


def _several(sync: Any) -> Any:
    model = _model()
    adam = _O.OptimizerMap(_O.SGD(0.05), {".*bias": _O.Adam(0.01)})

    def train() -> None:
        optimizer = rt.distribute(_O.MultiOptimizer(adam), sync)
        model.compile(optimizer, loss="mse", run_eagerly=True)
        _fit(model)

    says = _says(train)
    return [_flat(model), says]


def _in_python(sync: Any) -> bool:
    """Tracing takes most of the time, and one synchronizer of each kind is traced."""
    return type(sync) not in (rt.sync.LocalSGD, rt.sync.Sharded)


def _distributed(eager: bool = True, **arguments: Any) -> Any:
    model = _model(**arguments)
    model.compile(rt.distribute(_O.SGD(0.05)), loss="mse", run_eagerly=eager)
    return model


def _in_one(act: Any) -> Any:
    """Does something in the last process only."""
    return lambda model: act(model) if rt.rank() == rt.size() - 1 else None


def _move(model: Any) -> None:
    model.layers[-1].kernel.assign_add(tf.ones_like(model.layers[-1].kernel))


def _stop(model: Any) -> None:
    model.stop_training = True


def _slow(model: Any) -> None:
    model.optimizer.learning_rate = 0.01


def _of_keras(folder: Path) -> Any:
    """Weights, the rate, and what files have, after fit with callbacks of Keras; then what is refused."""
    model, best = _distributed(), folder / "best.keras"
    seen: list[Any] = []
    keeps = keras.callbacks.ModelCheckpoint(best, "val_loss", save_best_only=True)
    history = _fit(
        model,
        keras.callbacks.ReduceLROnPlateau("loss", 0.5, patience=0, min_delta=100),
        keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.9),
        keras.callbacks.TerminateOnNaN(),
        rt.on_rank_0(keras.callbacks.CSVLogger(folder / "log.csv")),
        rt.on_rank_0(keeps),
        _Call(on_test_end=lambda model: seen.append(_flat(model))),
    ).history
    rt.ops.barrier("files are written")
    lines = (folder / "log.csv").read_text().splitlines()[1:]
    losses = [float(line.split(",")[2]) for line in lines]
    saved = _flat(keras.models.load_model(best))
    own = keras.callbacks.CSVLogger(folder / f"log_{rt.rank()}.csv")
    says = [
        _says(lambda each=each: _fit(_distributed(), each))
        for each in (keeps, keras.callbacks.CSVLogger(folder / "log.csv"), own)
    ]
    rate = float(model.optimizer.learning_rate.numpy())
    best_is = saved == seen[int(np.argmin(history["val_loss"]))]
    return [_flat(model), rate, len(losses), best_is, says]


def together(files: str) -> Any:
    """By what happens: weights, and more."""
    rt.init(timeout=300)
    found: dict[str, Any] = {name: _best(sync()) for name, sync in APART.items()}
    found["two optimizers"] = _adversaries(lambda: rt.sync.LocalSGD(3))
    found["two sharded"] = _adversaries(rt.sync.Sharded)
    found["one of two"] = _adversaries(rt.sync.AllReduce, both=False)
    found["several in one"] = _several(rt.sync.LocalSGD(3))
    found["several, sharded"] = _several(rt.sync.Sharded())
    places = {
        "moved at the end": {"on_train_end": _in_one(_move)},
        "moved on the way": {"on_train_batch_end": _in_one(_move)},
        "moved at the start": {"on_train_begin": _in_one(_move)},
        "stopped": {"on_epoch_end": _in_one(_stop)},
        "slower": {"on_epoch_end": _in_one(_slow)},
    }
    for name, each in places.items():
        model = _distributed()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            says = _says(lambda model=model, each=each: _fit(model, _Call(**each)))
        epochs = len(model.history.history.get("loss", []))
        told = [str(each.message) for each in caught if "in some processes" in str(each.message)]
        found[name] = [_flat(model), says, epochs, told]
    restore = rt.on_rank_0(keras.callbacks.BackupAndRestore("nowhere"))
    found["of Keras"] = _of_keras(Path(files))
    found["restores"] = [[], _says(lambda: _fit(_distributed(), restore))]
    shared = rt.sync.LocalSGD(3)
    found["shared"] = [[], _says(lambda: _adversaries(lambda: shared))]
    found["plain"] = _plain()
    found["no callbacks"] = _without_callbacks()
    found["copied"] = [_copied(rt.sync.AllReduce()), _copied(rt.sync.Sharded())]
    found["frozen"] = _frozen()
    return found


def _plain() -> Any:
    """compile() without distribute()."""
    model = _model()
    model.compile(_O.SGD(0.05), loss="mse", run_eagerly=True)
    return [[], _says(lambda: _fit(model)), int(model.optimizer.iterations.numpy())]


def _without_callbacks() -> Any:
    """fit() with nothing, and a loop; then with equal weights."""
    x, y = rt.shard(_data())
    model, other = _distributed(eager=False), _model()
    says = [_says(lambda: model.fit(x, y, batch_size=8, verbose=0))]

    def step() -> None:
        with rt.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(other(x) - y))
        tape.gradient(loss, other.trainable_variables)

    says.append(_says(step))
    model = _distributed()
    rt.broadcast_variables(model.variables)
    model.fit(x, y, batch_size=8, verbose=0)
    return [_flat(model), says]


def _copied(sync: Any) -> list[str]:
    """Optimizers made from the configuration of a distributed one: before distribute(), and after it."""
    original, says = rt.distribute(_O.Adam(0.05), sync), []
    for again in (False, True):
        copied = type(original).from_config(original.get_config())
        model = _model()
        model.compile(rt.distribute(copied) if again else copied, loss="mse", run_eagerly=True)
        says.append(_says(lambda model=model: _fit(model)))
    return says


def _frozen() -> Any:
    """Whether a frozen layer stays as it is, and which statistics travel."""
    model, told, real = _distributed(hidden=50, frozen=True), [], operations.start
    before = []

    def start(handle: Any, kind: Any, tensors: Any, detail: str, **more: Any) -> Any:
        told.append((kind, detail))
        return real(handle, kind, tensors, detail, **more)

    operations.start = start
    try:
        look = _Call(on_train_begin=lambda model: before.append(_flat(model.layers[0])))
        _fit(model, look, epochs=2)
    finally:
        operations.start = real
    sent = [detail for kind, detail in told if kind == "all_reduce" and "statistics" in detail]
    return [_flat(model), before[0] == _flat(model.layers[0]), sent]


def with_averages() -> Any:
    """SwapEMAWeights: losses of validation and weights, by synchronizer."""
    rt.init(timeout=300)
    found = {}
    syncs: dict[str, Any] = {
        "AllReduce": (rt.sync.AllReduce, None, False, True),
        "Sharded": (rt.sync.Sharded, False, True),
        "ahead": (lambda: rt.sync.Sharded(prefetch=True), True),
        "LocalSGD": (lambda: rt.sync.LocalSGD(3), None, False),
    }
    for name, (sync, *swaps) in syncs.items():
        for swap in swaps:
            model = _model()
            own = _O.Adam(0.01, use_ema=True, ema_momentum=0.9)
            eager = name in ("AllReduce", "LocalSGD")
            model.compile(rt.distribute(own, sync()), loss="mse", run_eagerly=eager)
            more = [] if swap is None else [keras.callbacks.SwapEMAWeights(swap)]
            seen: list[Any] = []
            look = _Call(on_epoch_end=lambda model, seen=seen: seen.append(_flat(model)))
            history = _fit(model, *more, look)
            found[f"{name} {swap}"] = [history.history["val_loss"], seen, _flat(model)]
    return found


def warmed(backup: str) -> Any:
    """The rates of each step: without a break, after one, and of a second fit()."""
    rt.init(timeout=300)
    rates: dict[str, list[float]] = {"whole": [], "break": [], "again": []}

    def look(name: str) -> Any:
        return _Call(
            on_train_batch_end=lambda m: rates[name].append(float(m.optimizer.learning_rate))
        )

    _fit(_distributed(), look("whole"), epochs=4, warmup_epochs=3)
    for epochs in (2, 4):
        model = _distributed()
        _fit(model, look("break"), epochs=epochs, warmup_epochs=3, backup=Path(backup))
    model, (x, y) = _distributed(), rt.shard(_data())
    for epoch in range(4):
        more = [*rt.callbacks(warmup_epochs=3), look("again")]
        model.fit(x, y, batch_size=8, initial_epoch=epoch, epochs=epoch + 1, callbacks=more,
                  verbose=0)  # fmt: skip
    return rates


def kept_twice(backup: str, stages: int) -> Any:
    """Stages with one folder: steps and epochs of each, and what other models are told."""
    rt.init(timeout=300)
    model, found = _distributed(), []
    for _ in range(stages):
        history = _fit(model, epochs=2, backup=Path(backup))
        found.append(len(history.history.get("loss", [])))
    other, same = _distributed(hidden=9), _distributed()
    says = [
        _says(lambda each=each: _fit(each, epochs=2, backup=Path(backup))) for each in (other, same)
    ]
    return [found, int(model.optimizer.iterations.numpy()), _flat(model), says]
