# SPDX-License-Identifier: Apache-2.0
"""What the processes of test_split.py do, one of which ends in the middle of a step. See cases.py."""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import rdmatensor.train as rt
from rdmatensor.train.backend.tensorflow import operations
from rdmatensor.train.sync import local_sgd
from rdmatensor.train.sync.all_reduce import AllReduce


def split_kill(phase: str, doomed: int, died: str) -> Any:
    """Trains in groups of two until a process dies in that phase of a step. It writes the time to `died`."""
    run = rt.init(timeout=400)
    keras.utils.set_random_seed(5)
    dense = keras.layers.Dense
    model = keras.Sequential(
        [keras.Input((8,)), dense(10, "relu", name="fc1"), dense(6, name="fc2"), dense(2)]
    )
    period = 2 if phase in ("apart", "alive") else 1
    rt.split(model, 2, layers={"fc1": "column", "fc2": "row"}, period=period)
    if run.rank == doomed:
        _PHASES[phase](_dying(Path(died)))
    model.compile(rt.distribute(keras.optimizers.SGD(0.01)), loss="mse")
    data = np.ones((64, 8), "f"), np.ones((64, 2), "f")
    try:
        model.fit(*data, batch_size=4, epochs=1000, callbacks=rt.callbacks(), verbose=0)
    except Exception as error:
        answer = {"kind": type(error).__name__, "at": time.time(), "says": str(error)}
        if phase == "alive":
            _stay_until_all_know(run.rank, [r for r in range(run.size) if r != doomed], Path(died))
        return answer
    return "no error"


def _stay_until_all_know(rank: int, survivors: Sequence[int], died: Path) -> None:
    """A process that ends would tell those that wait for it."""
    died.with_name(f"knows {rank}").touch()
    end = time.monotonic() + 150
    while time.monotonic() < end:
        if all(died.with_name(f"knows {each}").exists() for each in survivors):
            return
        time.sleep(0.02)


def _dying(died: Path) -> Callable[[Any], Any]:
    """Passes a tensor on, and ends the process the fifth time."""
    times = itertools.count(1)

    def pass_on(value: Any) -> Any:
        if next(times) == 5:
            died.write_text(str(time.time()))
            os.kill(os.getpid(), signal.SIGKILL)
        return value

    return lambda x: tf.ensure_shape(tf.numpy_function(pass_on, [x], x.dtype), x.shape)


def _forward(dying: Callable[[Any], Any]) -> None:
    """Dies before it sends its part of the sums that a row layer gives."""
    send = operations.reduce_scatter

    @tf.custom_gradient
    def pass_on(x: Any) -> Any:
        return dying(x), lambda dy: dy

    operations.reduce_scatter = lambda run, x, *more: send(run, pass_on(x), *more)  # type: ignore


def _backward(dying: Callable[[Any], Any]) -> None:
    """Dies before it sends the gradient of what a row layer gives."""
    send = operations.reduce_scatter

    @tf.custom_gradient
    def pass_on(x: Any) -> Any:
        return tf.identity(x), dying

    operations.reduce_scatter = lambda *arguments: pass_on(send(*arguments))  # type: ignore


def _averaging(dying: Callable[[Any], Any]) -> None:
    """Dies before it sends the gradients of its strips to other groups."""
    average = AllReduce.gradients

    def average_or_die(self: Any, members: Any, each: Any, name: str) -> Any:
        if name.startswith("strips of"):
            each = [dying(each[0]), *each[1:]]
        return average(self, members, each, name)

    AllReduce.gradients = average_or_die  # type: ignore


def _apart(dying: Callable[[Any], Any]) -> None:
    """Dies before it sends its parameters to other groups."""
    average = local_sgd.mean

    def average_or_die(*arguments: Any) -> Any:
        dying(tf.zeros([]))
        return average(*arguments)

    local_sgd.mean = average_or_die  # type: ignore


_PHASES = {
    "forward": _forward,
    "backward": _backward,
    "averaging": _averaging,
    "apart": _apart,
    "alive": _forward,
}
