# SPDX-License-Identifier: Apache-2.0
"""A process of rdmatensor.train that does what a worker of tf_collective_task.py does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

import rdmatensor.train as rt
from tf_collective_task import CHECKED, Worker, matrix
from tf_task import Handlers, serve


class Process(Worker):
    """Runs one workload at a time, together with the other processes."""

    def all_reduce(self, bytes_each: int, count: int) -> Mapping[str, Any]:
        """Build a step of `count` all-reduces, and check their sums."""
        mine = self.numbers(bytes_each, count)
        tensors = [tf.constant(each) for each in mine]

        @tf.function
        def step() -> Any:
            return [
                rt.ops.all_reduce(each, op="sum", name=f"number {i}")
                for i, each in enumerate(tensors)
            ]

        for each, total in zip(self.sums(mine), step(), strict=True):
            np.testing.assert_array_equal(total.numpy()[:CHECKED], each[:CHECKED])
        self._step = step
        return {}

    def training(self, hidden: int) -> Mapping[str, Any]:
        """Build a step of gradient descent on a matrix of `hidden` rows and columns."""
        x, start = matrix(hidden)
        weight = tf.Variable(start)

        @tf.function
        def step() -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((x @ weight - x) ** 2) / self._size
            total = rt.ops.all_reduce(tape.gradient(loss, weight), op="sum", name="gradient")
            tf.raw_ops.ResourceApplyGradientDescent(var=weight.handle, alpha=0.1, delta=total)
            return loss

        step()
        self._step = step
        return {}


def start(cluster: dict[str, list[str]], job: str, index: int, protocol: str) -> Handlers:
    """Join the other processes."""
    run = rt.init(rank=index, size=len(cluster[job]), root=cluster[job][0])
    process = Process(None, index, run.size)
    return {
        "all_reduce": process.all_reduce,
        "training": process.training,
        "block": process.block,
        "close": dict,
    }


if __name__ == "__main__":
    serve(start)
