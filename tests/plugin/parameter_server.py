# SPDX-License-Identifier: Apache-2.0
"""Training with two workers and two parameter servers, which are lost in turn: parameter_server.py PROTOCOL.

What the workers compute is exact in any order, so that updates that are lost or come twice show. Prints, as
JSON, what each phase found.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
import numpy as np
import tensorflow as tf

import rdmatensor.tensorflow
from support.clusters import Task
from support.coordinators import strategy_of_chief
from support.ports import free_ports

ROWS, WIDTH = 1000, 64
RECOVERED_S = 60.0


def partition(shape: Any, dtype: Any, **axis: Any) -> Any:
    """The table by size, into as many parts as there are parameter servers; the rest in two."""
    partitioners = tf.distribute.experimental.partitioners
    chosen = (
        partitioners.MinSizePartitioner(min_shard_bytes=ROWS * WIDTH, max_shards=2)
        if shape.as_list() == [ROWS, WIDTH]
        else partitioners.FixedShardsPartitioner(2)
    )
    return chosen(shape, dtype, **axis)


class Training:
    """The strategy, its variables, and what is done with them."""

    def __init__(self, protocol: str, folder: Path) -> None:
        ports = [f"127.0.0.1:{port}" for port in free_ports(5)]
        self._cluster = {"chief": ports[:1], "worker": ports[1:3], "ps": ports[3:]}
        self._protocol, self._folder = protocol, folder
        self.tasks = {(job, i): self._start(job, i) for job in ("worker", "ps") for i in (0, 1)}
        for task in self.tasks.values():
            task.wait_until_ready()
        self._strategy = strategy_of_chief(self._cluster, protocol, partition)
        self._coordinator = tf.distribute.coordinator.ClusterCoordinator(self._strategy)
        with self._strategy.scope():
            self._table = tf.Variable(tf.zeros([ROWS, WIDTH]))
            self._weights = tf.Variable(tf.zeros([4, 5000]))
            self._steps = tf.Variable(tf.constant(0, tf.int64))
        self._batches = iter(self._coordinator.create_per_worker_dataset(self._dataset))
        self._step = tf.function(self._make_step)

    def _start(self, job: str, index: int) -> Task:
        log = self._folder / f"{job}{index}.log"
        return Task(self._cluster, job, index, self._protocol, log)

    @staticmethod
    def _dataset() -> Any:
        """Batches of ids, of different lengths."""
        return tf.data.Dataset.range(1, 1 << 40).map(
            lambda i: tf.random.stateless_uniform([2 + i % 90], [i, 3], 0, ROWS, tf.int64)
        )

    def _make_step(self, batches: Any) -> Any:
        """Each id of a batch adds 1 to its row of the table, each step 1 to every weight."""
        ids = next(batches)
        shards = [*self._table.variables, *self._weights.variables]
        with tf.GradientTape() as tape:
            looked_up = tf.nn.embedding_lookup(self._table, ids)
            loss = tf.reduce_sum(looked_up) + sum(tf.reduce_sum(w) for w in self._weights.variables)
        for shard, gradient in zip(shards, tape.gradient(loss, shards), strict=True):
            if isinstance(gradient, tf.IndexedSlices):
                shard.scatter_add(gradient)
            else:
                shard.assign_add(gradient)
        self._steps.assign_add(1)
        return tf.size(ids, tf.int64)

    def _reset(self) -> None:
        """Counters, in all tasks."""
        for task in self.tasks.values():
            task.ask("reset")
        rdmatensor.tensorflow.reset_stats()

    def _stats(self) -> dict[str, Any]:
        """`rdmatensor.tensorflow.stats()` of all tasks."""
        return {"chief": rdmatensor.tensorflow.stats()} | {
            f"{job} {index}": task.ask("stats") for (job, index), task in self.tasks.items()
        }

    def _check_shards(self) -> None:
        """Nothing was updated in parts. Between servers that holds only while no worker dies in its step."""
        for shard in self._table.variables:
            rows = shard.numpy()
            assert (rows == rows[:, :1]).all(), "a row of the table was updated in parts"
        for shard in self._weights.variables:
            weights = shard.numpy()
            assert (weights == weights[0, 0]).all(), "a server's weights were updated in parts"

    def _sums(self) -> tuple[int, int, int]:
        """Steps made; ids that the table saw; and steps that every weight saw."""
        self._check_shards()
        table = np.concatenate([shard.numpy() for shard in self._table.variables])
        weights = np.concatenate([shard.numpy() for shard in self._weights.variables])
        assert (weights == weights[0, 0]).all(), "the weights were updated in parts"
        return int(self._steps.numpy()), int(table[:, 0].sum()), int(weights[0, 0])

    def train(self) -> dict[str, Any]:
        """Steps in the background, and then each by itself; nothing fails, so all sums are exact."""
        ids = sum(int(result.fetch()) for result in self._schedule(40))
        for _ in range(5):
            ids += int(self._coordinator.schedule(self._step, args=(self._batches,)).fetch())
        steps, seen, weights = self._sums()
        return {
            "steps": steps,
            "ids": ids,
            "seen": seen,
            "weights": weights,
            "stats": self._stats(),
            "shards": [shard.device for shard in self._table.variables + self._weights.variables],
        }

    def _schedule(self, count: int) -> list[Any]:
        results = [
            self._coordinator.schedule(self._step, args=(self._batches,)) for _ in range(count)
        ]
        self._coordinator.join()
        return results

    def lose_worker(self) -> dict[str, Any]:
        """Worker 1 is killed during training, which goes on; its successor takes part in it."""
        pids = {str(key): task.ask("pid") for key, task in self.tasks.items()}
        before = int(self._steps.numpy())
        for _ in range(60):
            self._coordinator.schedule(self._step, args=(self._batches,))
        self.tasks["worker", 1].kill()
        self._coordinator.join()
        without = int(self._steps.numpy()) - before
        self._check_shards()
        self.tasks["worker", 1] = self._start("worker", 1)
        self.tasks["worker", 1].wait_until_ready()
        end = time.monotonic() + RECOVERED_S
        while not self._received("worker", 1):
            assert time.monotonic() < end, "the new worker gets no work"
            self._schedule(20)
        self._reset()
        self._schedule(100)
        survivors = [key for key, task in self.tasks.items() if task.ask("pid") == pids[str(key)]]
        return {
            "without": without,
            "survivors": [" ".join(map(str, key)) for key in survivors],
            "stats": self._stats(),
        }

    def _received(self, job: str, index: int) -> bool:
        paths = self.tasks[job, index].ask("stats")["paths"]
        return any(counters["received_tensors"] for counters in paths.values())

    def lose_server(self) -> dict[str, Any]:
        """A parameter server is killed: training ends with an error, and soon."""
        self.tasks["ps", 0].kill()
        try:
            self._schedule(10)
        except tf.errors.OpError as error:
            return {"error": type(error).__name__}
        return {"error": None}

    def close(self) -> None:
        """Kill all."""
        for task in self.tasks.values():
            task.kill()


def main() -> None:
    """See the module."""
    training = Training(sys.argv[1], Path(tempfile.mkdtemp()))
    try:
        said = {
            "train": training.train(),
            "lose_worker": training.lose_worker(),
            "lose_server": training.lose_server(),
        }
        print(json.dumps(said), flush=True)
    finally:
        training.close()
    # Coordinators keep threads that wait for workers for ever.
    os._exit(0)


if __name__ == "__main__":
    main()
