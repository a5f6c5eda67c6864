# SPDX-License-Identifier: Apache-2.0
"""Cases of cases.py in which processes fail, disagree, do not come, or are killed."""

from __future__ import annotations

import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import rdmatensor.train as rt
from rdmatensor import UsageError
from rdmatensor.train.backend.tensorflow import operations
from rdmatensor.train.keras import backup as backups
from support.waits import until
from train import sharded_cases

__all__ = ["absent", "disagreements", "kill_and_resume", "killed", "late", "local_failures"]
# A tensor that does not fit into what is left of the address space.
LARGE, LEFT = 48 << 20, 24 << 20


def _caught(action: Callable[[], Any]) -> Any:
    """The error, and how long it took to come."""
    begun = time.monotonic()
    try:
        action()
    except Exception as error:
        kind = type(error).__name__
        return {"kind": kind, "says": str(error), "seconds": time.monotonic() - begun}
    return {"kind": "no error", "says": "", "seconds": 0.0}


def local_failures(meeting: str) -> Any:
    """Rank 1 fails in several ways while the others wait for it, or come later; then a sum of all."""
    run = rt.init(timeout=600)
    odd = run.rank == 1
    return {
        "shape": _caught(lambda: rt.ops.reduce_scatter(tf.zeros([4 if odd else 6]), name="parts")),
        "memory": _caught(_without_memory if odd else _broadcast_large),
        "node": _caught(lambda: _beside_a_failing_node(run.rank, Path(meeting))),
        "after": float(rt.ops.all_reduce(tf.constant(run.rank + 1.0), op="sum")),
    }


def _broadcast_large() -> Any:
    return rt.ops.broadcast(tf.zeros([LARGE // 4]), name="a large one")


def _without_memory() -> Any:
    value = tf.zeros([LARGE // 4])
    limits = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + LEFT, limits[1]))
    try:
        return rt.ops.broadcast(value, name="a large one")
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)


def _beside_a_failing_node(rank: int, folder: Path) -> Any:
    """Rank 0 waits for a sum, which rank 1 has started when its function fails. Rank 2 comes afterwards."""

    def fail() -> Any:
        until("rank 0 did not come", (folder / "waits").exists)
        raise ValueError("another node")

    @tf.function
    def both() -> Any:
        value = [tf.ones([3])]
        started = operations.start(rt.init().handle, "all_reduce", value, "the sum")
        with tf.control_dependencies([started.token]):
            other = tf.numpy_function(fail, [], tf.float32)
        return started.finish()[0] + other

    if rank == 0:
        (folder / "waits").touch()
    elif rank == 1:
        try:
            return both()
        finally:
            (folder / "failed").touch()
    else:
        until("rank 1 did not fail", (folder / "failed").exists)
    return tf.function(lambda: rt.ops.all_reduce(tf.ones([3]), op="sum", name="the sum"))()


def kill_and_resume(backup: str, dies: str = "") -> Any:
    """The losses of the epochs of a training with a backup, or the error of a process that lost another.

    `dies`: rank 1 in a step of the third epoch, or rank 0 when it has written the second epoch's weights,
    and not yet the state that names them.
    """
    run = rt.init(timeout=400)

    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    class Dies(keras.callbacks.Callback):  # type: ignore[misc]
        epoch = 0

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.epoch = epoch

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if (dies, run.rank, self.epoch, batch) == ("step", 1, 2, 1):
                die()

    put = backups.put

    def put_or_die(written: Path, file: Path) -> None:
        if dies == "files" and (file.parent / "kept_2.weights.h5").exists():
            die()
        put(written, file)

    backups.put = put_or_die  # type: ignore[attr-defined]
    model = sharded_cases._model()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(rt.distribute(keras.optimizers.Adam(0.01)), loss=loss)
    data = rt.shard(sharded_cases._data())
    callbacks = [*rt.callbacks(backup=backup), Dies()]
    try:
        history = model.fit(*data, batch_size=8, shuffle=False, epochs=4, callbacks=callbacks,
                            verbose=0).history  # fmt: skip
    except tf.errors.OpError as error:
        return {"kind": type(error).__name__, "says": str(error)}
    return {"losses": history["loss"], "weights": sharded_cases._flat(model.trainable_variables)}


def disagreements() -> Any:
    """What a process is told if another one does something else."""
    ways = "shape", "name", "kind", "type", "mean", "steps", "model", "gradients", "synchronizers"
    return {how: disagree(how) for how in ways}


def disagree(how: str) -> Any:
    run = rt.init(timeout=60)
    odd = run.rank == 1
    try:
        if how == "shape":
            rt.ops.all_reduce(tf.zeros([3] if odd else [2]), name="weights")
        elif how == "name":
            rt.ops.all_reduce(tf.zeros([2]), name="of the model" if odd else "of the loss")
        elif how == "kind":
            (rt.ops.all_gather if odd else rt.ops.all_reduce)(tf.zeros([2]), name="values")
        elif how == "type":
            rt.ops.all_reduce(tf.zeros([2], tf.float64 if odd else tf.float32), name="values")
        elif how == "mean":
            rt.ops.reduce_scatter(tf.zeros([2]), "mean" if odd else "sum", name="values")
        elif how == "steps":
            _uneven(odd)
        elif how == "model":
            _another_model(odd)
        elif how == "gradients":
            _another_branch(odd)
        elif how == "synchronizers":
            _another_synchronizer(odd)
    except (tf.errors.OpError, UsageError) as error:
        return {"kind": type(error).__name__, "says": str(error)}
    return "no error"


def _uneven(odd: bool) -> None:
    model = sharded_cases._model()
    model.compile(rt.distribute("sgd"), loss="mse")
    rows = 8 if odd else 16
    model.fit(*_zeros(rows), batch_size=4, callbacks=rt.callbacks(), verbose=0)


def _another_model(odd: bool) -> None:
    layers = keras.layers.Dense(17 if odd else 16), keras.layers.Dense(sharded_cases.CLASSES)
    model = keras.Sequential([keras.Input((sharded_cases.WIDTH,)), *layers])
    model.compile(rt.distribute("sgd"), loss="mse")
    model.fit(*_zeros(8), batch_size=4, callbacks=rt.callbacks(), verbose=0)


class Two(keras.Model):  # type: ignore[misc]
    """Two layers of one shape, of which it uses one."""

    def __init__(self, odd: bool) -> None:
        super().__init__(name="two")
        self.heads = [keras.layers.Dense(sharded_cases.CLASSES, name=f"head{i}") for i in range(2)]
        self._used = self.heads[odd]

    def build(self, shape: Any) -> None:
        for each in self.heads:
            each.build(shape)
        self.built = True

    def call(self, inputs: Any) -> Any:
        return self._used(inputs)


def _another_branch(odd: bool) -> None:
    model = Two(odd)
    model.build((None, sharded_cases.WIDTH))
    if odd:
        keras.optimizers.SGD(), keras.layers.Dense(1)  # names that Keras makes have other numbers
    model.compile(rt.distribute(keras.optimizers.SGD()), loss="mse")
    model.fit(*_zeros(8), batch_size=4, callbacks=rt.callbacks(), verbose=0)


def _another_synchronizer(odd: bool) -> None:
    model = sharded_cases._model()
    sync = rt.sync.LocalSGD(3) if odd else rt.sync.AllReduce()
    model.compile(rt.distribute("sgd", sync), loss="mse")
    model.fit(*_zeros(8), batch_size=4, callbacks=rt.callbacks(), verbose=0)


def _zeros(rows: int) -> tuple[Any, Any]:
    width, classes = sharded_cases.WIDTH, sharded_cases.CLASSES
    return np.zeros((rows, width), "f"), np.zeros((rows, classes), "f")


def late() -> Any:
    """What a process is told that waits for one that does not come."""
    run = rt.init(timeout=5 if int(os.environ["RANK"]) == 0 else 60)
    if run.rank == 1:
        print("idle", flush=True)
        sys.stdin.read()  # until the test ends it
    try:
        rt.ops.all_reduce(tf.zeros([2]), name="of both")
    except tf.errors.OpError as error:
        return {"kind": type(error).__name__, "says": str(error)}
    return "no error"


def absent() -> Any:
    """What the first process is told if others never start."""
    try:
        rt.init(timeout=3)
    except Exception as error:
        return {"kind": type(error).__name__, "says": str(error)}
    return "no error"


def killed(rank: int) -> Any:
    """Trains until another process dies. Tells when it learned that."""
    run = rt.init(timeout=400)
    model = sharded_cases._model()
    model.compile(rt.distribute("sgd"), loss="mse")

    class Tell(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if batch == 5 and run.rank == rank:
                print("training", flush=True)

    more: dict[str, Any] = {"callbacks": [*rt.callbacks(), Tell()], "verbose": 0}
    try:
        model.fit(*_zeros(40000), batch_size=4, epochs=1000, **more)
    except tf.errors.OpError as error:
        return {"kind": type(error).__name__, "says": str(error), "at": time.time()}
    return "no error"
