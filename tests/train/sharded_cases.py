# SPDX-License-Identifier: Apache-2.0
"""What processes of the tests do with a sharded optimizer."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import rdmatensor.train as rt
from rdmatensor.errors import UsageError
from rdmatensor.train.backend.tensorflow import operations
from rdmatensor.train.sharding import elementwise

__all__ = [
    "sharded",
    "sharded_infinity",
    "sharded_killed",
    "sharded_refusals",
    "sharded_resume",
    "sharded_saves",
]
WIDTH, CLASSES = 12, 4
_O = keras.optimizers


class Signs(keras.optimizers.Optimizer):  # type: ignore[misc]
    """An elementwise optimizer that Keras does not know."""

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        self.assign_sub(variable, tf.sign(gradient) * tf.cast(learning_rate, variable.dtype))


OPTIMIZERS: dict[str, Any] = {
    "sgd": lambda: _O.SGD(0.1, momentum=0.9),
    "adam": lambda: _O.Adam(0.01, amsgrad=True),
    "nadam": lambda: _O.Nadam(0.01),
    "signs": lambda: Signs(0.01),
    "clipvalue": lambda: _O.SGD(0.1, clipvalue=0.01),
    "clipnorm": lambda: _O.AdamW(0.01, clipnorm=0.05),
    "global_clipnorm": lambda: _O.SGD(0.1, global_clipnorm=0.05),
    "accumulate": lambda: _O.Adam(0.01, gradient_accumulation_steps=2),
    "ema": lambda: _O.SGD(0.1, use_ema=True, ema_momentum=0.8, ema_overwrite_frequency=3),
}
FITS: dict[str, dict[str, Any]] = {
    **{name: {"optimizer": name} for name in OPTIMIZERS},
    "adam": {"optimizer": "adam", "validate": True},
    "steps at once": {"optimizer": "adam", "at_once": 2},
    "ahead": {"optimizer": "adam", "ahead": True, "validate": True},
    "ahead, steps at once": {"optimizer": "adam", "ahead": True, "at_once": 2},
    "ahead, constraint": {"optimizer": "sgd", "ahead": True, "constraint": True},
    "eager": {"optimizer": "adam", "eager": True},
    "decay": {"optimizer": "clipnorm", "exclude": True},
    "constraint": {"optimizer": "sgd", "constraint": True},
    "float16": {"optimizer": "clipnorm", "policy": "mixed_float16"},
    "float16, accumulated": {"optimizer": "accumulate", "policy": "mixed_float16"},
    "rows": {"optimizer": "sgd", "rows": True},
}
LONG = {"nadam", "signs", "clipvalue", "clipnorm", "accumulate", "steps at once", "ahead, steps at once",
        "ahead, constraint", "constraint", "eager", "float16"}  # fmt: skip


def _data() -> tuple[Any, Any]:
    numbers = np.random.default_rng(3)
    return numbers.standard_normal((64, WIDTH)).astype("f"), numbers.integers(0, CLASSES, 64)


def _model(rows: bool = False, constraint: bool = False) -> Any:
    keras.utils.set_random_seed(5 + rt.rank())
    if rows:
        table = keras.layers.Embedding(11, 3)
        layers = [keras.Input((WIDTH,), dtype="int32"), table, keras.layers.Flatten()]
    else:
        limit = keras.constraints.MaxNorm(0.7) if constraint else None
        # 17 units: strips have zeros at the end.
        hidden = keras.layers.Dense(17, activation="tanh", kernel_constraint=limit)
        layers = [keras.Input((WIDTH,)), hidden]
    return keras.Sequential([*layers, keras.layers.Dense(CLASSES)])


def _fit(model: Any, optimizer: Any, epochs: int = 2, callbacks: Any = (), validate: bool = False,
         **more: Any) -> Any:  # fmt: skip
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss=loss, **more)
    x, y = _data()
    if model.inputs[0].dtype == "int32":
        x = np.abs(x * 5).astype("int32") % 11
    size = rt.size()
    model.fit(*rt.shard((x, y)), batch_size=16 // size, shuffle=False, epochs=epochs,
              validation_data=(x, y) if validate else None,
              callbacks=[*rt.callbacks(), *callbacks], verbose=0)  # fmt: skip
    return model


def _flat(variables: Any) -> list[float]:
    return [float(x) for each in variables for x in np.ravel(tf.convert_to_tensor(each))]


def _one(sync: Any, optimizer: str, rows: bool = False, constraint: bool = False,
         exclude: bool = False, policy: str = "float32", eager: bool = False,
         at_once: int = 1, validate: bool = False) -> Any:  # fmt: skip
    keras.config.set_dtype_policy(policy)
    try:
        model = _model(rows, constraint)
        own = OPTIMIZERS[optimizer]()
        if exclude:
            own.weight_decay = 0.3
            own.exclude_from_weight_decay(var_list=[model.layers[0].kernel], var_names=["bias"])
        _fit(model, rt.distribute(own, sync), validate=validate, run_eagerly=eager,
             steps_per_execution=at_once)  # fmt: skip
    finally:
        keras.config.set_dtype_policy("float32")
    return model


def sharded(names: list[str], whole: bool = True) -> Any:
    """Each of FITS sharded, and with AllReduce if that is wanted: weights, steps, and the elements of the
    state."""
    rt.init()
    alike: dict[str, Any] = {}  # with AllReduce, by everything else
    found = {}
    for name in names:
        fit = dict(FITS[name])
        ahead = fit.pop("ahead", False)
        each = {"parts": _trained(rt.sync.Sharded(bucket_bytes=600, prefetch=ahead), fit)}
        if whole:
            key = json.dumps(fit)
            alike[key] = each["whole"] = alike.get(key) or _trained(rt.sync.AllReduce(), fit)
        found[name] = each
    return found


def _trained(sync: Any, fit: dict[str, Any]) -> dict[str, Any]:
    model = _one(sync, **fit)
    optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    state = [v for v in optimizer.variables if len(v.shape)]
    return {
        "weights": _flat(model.trainable_variables),
        "steps": int(optimizer._iterations.numpy()),
        "validation": model.history.history.get("val_loss", []),
        "state": sum(int(np.prod(v.shape)) for v in state),
    }


def sharded_infinity() -> Any:
    """float16 with an overflow in one process."""
    run = rt.init()
    keras.config.set_dtype_policy("mixed_float16")
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    keras.config.set_dtype_policy("float32")
    data = np.full((8, 2), 0.01, "f")
    if run.rank == 1:
        data[4] = np.inf  # of the second batch
    optimizer = keras.optimizers.LossScaleOptimizer(_O.SGD(0.01))
    model.compile(rt.distribute(optimizer, rt.sync.Sharded()), loss="mse")
    model.fit(data, np.full((8, 1), 0.01, "f"), batch_size=4, shuffle=False,
              callbacks=rt.callbacks(), verbose=0)  # fmt: skip
    steps = int(optimizer.inner_optimizer.iterations.numpy())
    return [float(optimizer.dynamic_scale.numpy()), steps, _flat(model.trainable_variables)]


def sharded_saves(kept: str) -> Any:
    """A sharded model is saved as one that is not, and goes on."""
    run = rt.init()
    folder = Path(kept)

    def sync() -> Any:
        return rt.sync.Sharded(bucket_bytes=600)

    whole = _fit(_model(), rt.distribute(_O.Adam(0.01)))
    each_epoch = rt.on_rank_0(keras.callbacks.ModelCheckpoint(folder / "epoch_{epoch}.keras"))
    parts = _fit(_model(), rt.distribute(_O.Adam(0.01), sync()), callbacks=[each_epoch])
    rt.save(parts, folder / "model.keras")
    says = ""
    try:
        parts.save(folder / f"other_{run.rank}.keras")
    except UsageError as error:
        says = str(error)
    found: dict[str, Any] = {"says": says}
    for file in ("model", "epoch_2"):
        loaded = keras.models.load_model(folder / f"{file}.keras")
        expected = _flat([*whole.trainable_variables, *whole.optimizer.variables])
        found[file] = _flat([*loaded.trainable_variables, *loaded.optimizer.variables]) == expected
        found[f"{file} class"] = type(loaded.optimizer) is _O.Adam
    # Its state is cut again.
    _fit(whole, whole.optimizer, epochs=1)
    _fit(loaded, rt.distribute(loaded.optimizer, sync()), epochs=1)
    found["goes on"] = _flat(loaded.trainable_variables) == _flat(whole.trainable_variables)
    found["state"] = sum(int(np.prod(each.shape)) for each in loaded.optimizer.variables)
    return found


def sharded_resume(backup: str, stop_after: int | None) -> Any:
    """Trains with a backup; may end without a goodbye."""
    rt.init()

    class Stop(keras.callbacks.Callback):  # type: ignore[misc]
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            if epoch == stop_after:
                print(json.dumps("killed"), flush=True)
                os._exit(9)

    callbacks = [*rt.callbacks(backup=backup), Stop()]
    optimizer = rt.distribute(_O.Adam(0.01), rt.sync.Sharded())
    return _flat(_fit(_model(), optimizer, 4, callbacks).trainable_variables)


def sharded_refusals() -> Any:
    """What is said of each optimizer that is not elementwise; "" of those that are."""
    found = {}
    names = "Lamb", "Muon", "Adafactor", "ScheduleFreeAdamW"
    # Keras has the last one since 3.14.
    known = [getattr(_O, name)() for name in names if hasattr(_O, name)]
    for own in (*known, Signs(0.1), _O.Lion()):
        try:
            elementwise.refuse_if_not_elementwise(own)
            found[type(own).__name__] = ""
        except UsageError as error:
            found[type(own).__name__] = str(error)
    return found


# The operation with which a process dies: its kind, and a part of its name.
_DEADLY = {
    "reduce": ("reduce_scatter", " 2 of "),
    "gather": ("all_gather", " 2 of "),
    "ahead": ("all_gather", " 2 of "),
    "norms": ("all_reduce", "norms of "),
    "save": ("all_gather", "state "),
    "backup": ("all_gather", "state "),
}


def sharded_killed(phase: str, kept: str) -> Any:
    """Rank 1 dies in the third step: with gradients, weights or norms under way, or in the update. Or it dies
    with the third part of the state, which is brought together for a file or a backup."""
    run = rt.init(timeout=60)
    steps = 0

    def die() -> Any:
        nonlocal steps
        steps += 1
        if steps == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return np.float32(0)

    real, (deadly, name) = operations.start, _DEADLY.get(phase, ("", ""))

    def start(handle: Any, kind: Any, tensors: Any, detail: str, **more: Any) -> Any:
        started = real(handle, kind, tensors, detail, **more)
        if kind == deadly and name in detail:
            with tf.control_dependencies([started.token]):
                tf.numpy_function(die, [], tf.float32)
        return started

    class Dies(keras.optimizers.SGD):  # type: ignore[misc]
        def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
            if phase == "update" and run.rank == 1 and variable.shape[0] == CLASSES // 2:
                gradient += tf.numpy_function(die, [], tf.float32)
            super().update_step(gradient, variable, learning_rate)

    if run.rank == 1:
        operations.start = start
    own = Dies(0.1, momentum=0.9, global_clipnorm=1.0 if phase == "norms" else None)
    optimizer = rt.distribute(own, rt.sync.Sharded(1, prefetch=phase == "ahead"))
    callbacks = rt.callbacks(backup=Path(kept, "backup")) if phase == "backup" else ()
    try:
        model = _fit(_model(), optimizer, 1 if phase == "save" else 1000, callbacks)
        rt.save(model, Path(kept, "model.keras"))
    except tf.errors.OpError as error:
        return {"kind": type(error).__name__, "says": str(error)}
    return "no error"
