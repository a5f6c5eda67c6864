# SPDX-License-Identifier: Apache-2.0
"""A process of bench_sharded.py: takes training steps of a network whose layers sleep.

Its variables have the shapes of VGG-A with an eighth of the features. A layer's forward and backward passes
sleep in proportion to what they would compute; gradients, updates and communication are real.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import rdmatensor.train as rt
from bench_sharded import LESS, shapes
from graph_analyzer.parallel.layers import NETWORKS
from member import serve, timed
from rdmatensor.train.backend.tensorflow.optimizer import hooks_of


def sleeps(compute: float) -> list[float]:
    """Seconds of each layer's forward pass, of a step that computes so many seconds."""
    flops = np.array([each.flops for each in NETWORKS["vgg_a"]()])
    return [float(x) for x in compute / 3 * flops / flops.sum()]


def _after(seconds: float, value: Any) -> Any:
    def wait(x: Any) -> Any:
        time.sleep(seconds)
        return x

    if not seconds:
        return value
    return tf.ensure_shape(tf.numpy_function(wait, [value], tf.float32), [])


class Program:
    """The network with one synchronizer."""

    def __init__(self, sync: Any, compute: Sequence[float], less: int) -> None:
        self.variables = [keras.Variable(np.zeros(each, "f")) for each in shapes(less)]
        optimizer = keras.optimizers.Adam(1e-3)
        self.optimizer = optimizer if sync is None else rt.distribute(optimizer, sync)
        self.optimizer.build(self.variables)

        def step() -> Any:
            now = tf.constant(0.5)
            for each, variable in zip(compute, self.variables, strict=True):
                # A layer needs its weights.
                with tf.control_dependencies([tf.identity(variable.value)]):
                    now = _after(each, tf.identity(now))
            gradients: list[Any] = []
            for each, variable in zip(compute[::-1], self.variables[::-1], strict=True):
                now = _after(2 * each, now)
                gradients.insert(0, tf.fill(variable.shape, now))
            self.optimizer.apply(gradients, self.variables)
            return now

        # As a model, to a synchronizer.
        self.train_step: Callable[[], Any] = step
        self.make_train_function()
        self._hooks = hooks_of(sync) if sync is not None else None
        if self._hooks is not None:
            self._hooks.resume(self, self.optimizer)

    def leave(self) -> None:
        """Wait for all weights."""
        if self._hooks is not None:
            self._hooks.leave(self, self.optimizer)

    def make_train_function(self, force: bool = False) -> None:
        self._step = tf.function(self.train_step)

    def steps(self, count: int, size: int) -> list[float]:
        """How long steps take, all processes together."""
        self._step()
        if size > 1:
            rt.ops.barrier()
        return timed(self._step, count)

    def state_bytes(self) -> int:
        return sum(int(np.prod(each.shape)) * 4 for each in self.optimizer.variables)


def _resident() -> int:
    """Bytes of memory that this process has."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


SYNCS: dict[str, Callable[[], Any]] = {
    "sharded": lambda: rt.sync.Sharded(),
    "ahead": lambda: rt.sync.Sharded(prefetch=True),
    "all-reduce": lambda: rt.sync.AllReduce(),
    "alone": lambda: None,
}


def main() -> None:
    size = rt.init(timeout=100).size

    def train(way: str, compute: float, steps: int, less: int = LESS) -> dict[str, Any]:
        sync, before = SYNCS[way](), _resident()
        program = Program(sync, sleeps(compute), less)
        seconds = program.steps(steps, size)
        program.leave()
        return {
            "seconds": seconds,
            "state": program.state_bytes(),
            "sum": float(sum(np.sum(each.numpy()) for each in program.variables)),
            "resident": _resident() - before,
        }

    serve({"train": train})


if __name__ == "__main__":
    main()
