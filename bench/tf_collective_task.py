# SPDX-License-Identifier: Apache-2.0
"""A worker of MultiWorkerMirroredStrategy, for bench_collectives.py."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tf_task import Handlers, serve

BATCH = 8
CHECKED = 1000


def matrix(hidden: int) -> tuple[Any, Any]:
    """The data of the training step, and the matrix that it starts with."""
    random = np.random.default_rng(7)
    x = tf.constant(random.normal(size=(BATCH, hidden)).astype("f"))
    return x, random.normal(scale=0.01, size=(hidden, hidden)).astype("f")


class Worker:
    """Runs one workload at a time, together with the other workers."""

    def __init__(self, strategy: Any, index: int, size: int) -> None:
        self._strategy = strategy
        self._index = index
        self._size = size
        self._step: Callable[[], Any] | None = None

    def numbers(self, bytes_each: int, count: int) -> list[Any]:
        """What this worker adds to `count` sums."""
        return [np.arange(bytes_each // 4, dtype="f") % 97 + self._index + i for i in range(count)]

    def sums(self, mine: list[Any]) -> list[Any]:
        """What the sums are, where this worker's numbers are `mine`."""
        others = self._size * (self._size - 1) / 2 - self._size * self._index
        return [each * self._size + others for each in mine]

    def all_reduce(self, bytes_each: int, count: int) -> Mapping[str, Any]:
        """Build a step of `count` all-reduces, and check their sums."""
        mine = self.numbers(bytes_each, count)
        tensors = [tf.constant(each) for each in mine]

        @tf.function
        def step() -> Any:
            def replica() -> list[Any]:
                context = tf.distribute.get_replica_context()
                # One call for each tensor, because the strategy would join a list into one tensor.
                return [context.all_reduce(tf.distribute.ReduceOp.SUM, each) for each in tensors]

            return self._strategy.run(replica)

        for each, total in zip(self.sums(mine), step(), strict=True):
            np.testing.assert_array_equal(total.numpy()[:CHECKED], each[:CHECKED])
        self._step = step
        return {}

    def training(self, hidden: int) -> Mapping[str, Any]:
        """Build a step of gradient descent on a matrix of `hidden` rows and columns."""
        x, start = matrix(hidden)
        with self._strategy.scope():
            weight = tf.Variable(start)

        @tf.function
        def step() -> Any:
            def replica() -> Any:
                with tf.GradientTape() as tape:
                    loss = tf.reduce_mean((x @ weight - x) ** 2) / self._size
                gradient = tape.gradient(loss, weight)
                context = tf.distribute.get_replica_context()
                total = context.all_reduce(tf.distribute.ReduceOp.SUM, gradient)
                # Optimizers use this operation.
                tf.raw_ops.ResourceApplyGradientDescent(var=weight.handle, alpha=0.1, delta=total)
                return loss

            return self._strategy.run(replica)

        step()
        self._step = step
        return {}

    def block(self, steps: int) -> Mapping[str, Any]:
        """Time each of `steps` steps."""
        assert self._step is not None
        seconds = []
        result = self._step()  # untimed, so that all workers begin together
        for _ in range(steps):
            begin = time.perf_counter()
            result = self._step()
            tf.nest.map_structure(
                lambda each: each.numpy() if each.shape.rank == 0 else None, result
            )
            seconds.append(time.perf_counter() - begin)
        losses = [result.numpy().tobytes().hex()] if tf.is_tensor(result) else []
        return {"seconds": seconds, "losses": losses, "steps": steps + 1}


def start(cluster: dict[str, list[str]], job: str, index: int, protocol: str) -> Handlers:
    """Join the other workers."""
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(cluster), task_type=job, task_id=index, rpc_layer=protocol
    )
    strategy = tf.distribute.MultiWorkerMirroredStrategy(resolver)
    worker = Worker(strategy, index, len(cluster[job]))
    return {
        "all_reduce": worker.all_reduce,
        "training": worker.training,
        "block": worker.block,
        "close": dict,
    }


if __name__ == "__main__":
    serve(start)
