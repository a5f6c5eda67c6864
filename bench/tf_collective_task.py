# SPDX-License-Identifier: Apache-2.0
"""A worker of bench_collectives.py: of MultiWorkerMirroredStrategy, or a process of rdmatensor.train."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any

import numpy as np
import tensorflow as tf

from member import timed_values
from tf_task import Handlers, commands_of, serve

BATCH = 8
CHECKED = 1000


class Worker:
    """Runs one workload at a time, together with the other workers."""

    def __init__(self, size: int, index: int, strategy: Any = None, train: Any = None) -> None:
        self._index, self._size, self._strategy, self._train = index, size, strategy, train
        self._step: Callable[[], Any] | None = None

    def _sum(self, tensor: Any, name: str) -> Any:
        """The sum of all workers' tensors, in a replica."""
        if self._train:
            return self._train.ops.all_reduce(tensor, op="sum", name=name)
        context = tf.distribute.get_replica_context()
        return context.all_reduce(tf.distribute.ReduceOp.SUM, tensor)

    def _run(self, replica: Callable[[], Any]) -> Any:
        @tf.function
        def step() -> Any:
            return replica() if self._train else self._strategy.run(replica)

        self._step = step
        return step()

    def all_reduce(self, bytes_each: int, count: int) -> Mapping[str, Any]:
        """Build a step of `count` all-reduces, and check their sums."""
        mine = [np.arange(bytes_each // 4, dtype="f") % 97 + self._index + i for i in range(count)]
        tensors = [tf.constant(each) for each in mine]

        def replica() -> list[Any]:
            # One call for each tensor, because the strategy would join a list into one tensor.
            return [self._sum(each, f"number {i}") for i, each in enumerate(tensors)]

        others = self._size * (self._size - 1) / 2 - self._size * self._index
        for each, total in zip(mine, self._run(replica), strict=True):
            right = each[:CHECKED] * self._size + others
            np.testing.assert_array_equal(total.numpy()[:CHECKED], right)
        return {}

    def training(self, hidden: int) -> Mapping[str, Any]:
        """Build a step of gradient descent on a matrix of `hidden` rows and columns."""
        random = np.random.default_rng(7)
        x = tf.constant(random.normal(size=(BATCH, hidden)).astype("f"))
        with self._strategy.scope() if self._strategy else nullcontext():
            weight = tf.Variable(random.normal(scale=0.01, size=(hidden, hidden)).astype("f"))

        def replica() -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((x @ weight - x) ** 2) / self._size
            total = self._sum(tape.gradient(loss, weight), "gradient")
            # Optimizers use this operation.
            tf.raw_ops.ResourceApplyGradientDescent(var=weight.handle, alpha=0.1, delta=total)
            return loss

        self._run(replica)
        return {}

    def block(self, steps: int) -> Mapping[str, Any]:
        """Time each of `steps` steps."""

        def step() -> Any:
            assert self._step is not None
            return tf.nest.map_structure(
                lambda each: each.numpy() if each.shape.rank == 0 else None, self._step()
            )

        step()  # untimed, so that all workers begin together
        seconds, values = timed_values(step, steps)
        losses = [] if isinstance(values[-1], list) else [values[-1].tobytes().hex()]
        return {"seconds": seconds, "losses": losses, "steps": steps + 1}

    def close(self) -> Mapping[str, Any]:
        return {}


def start(cluster: dict[str, list[str]], job: str, index: int, protocol: str) -> Handlers:
    """Join the other workers."""
    size = len(cluster[job])
    if "RDMATENSOR_BENCH_TRAIN" in os.environ:
        import rdmatensor.train

        rdmatensor.train.init(rank=index, size=size, root=cluster[job][0])
        return commands_of(Worker(size, index, train=rdmatensor.train))
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(cluster), task_type=job, task_id=index, rpc_layer=protocol
    )
    return commands_of(Worker(size, index, tf.distribute.MultiWorkerMirroredStrategy(resolver)))


if __name__ == "__main__":
    serve(start)
