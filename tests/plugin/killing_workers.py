# SPDX-License-Identifier: Apache-2.0
"""Kills a worker of a ClusterCoordinator at a random moment, again and again:
python -m plugin.killing_workers --times N [--protocol grpc].

All closures must give their values, computed by the other worker, and the successor of the killed one must
take part again. `make test SUITE=kills` runs it; test_kills.py has a short form.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
import numpy as np
import tensorflow as tf
from tensorflow.python.platform import _pywrap_stacktrace_handler

from support.clusters import Task, within
from support.coordinators import strategy_of_chief
from support.ports import free_ports

SIZES = [4, 2_000, 300_000]
CLOSURES = 30
LONGEST_S = 0.1  # about as long as so many closures take
# The coordinator looks every few seconds whether a worker is back.
RECOVERED_S = 120.0


class Chief:
    """A coordinator with two workers and a parameter server."""

    def __init__(self, protocol: str, folder: Path) -> None:
        ports = [f"127.0.0.1:{port}" for port in free_ports(4)]
        self._cluster = {"chief": ports[:1], "worker": ports[1:3], "ps": ports[3:]}
        self._protocol, self._folder = protocol, folder
        self._workers = [self._start("worker", index) for index in range(2)]
        self._server = self._start("ps", 0)
        for task in (*self._workers, self._server):
            task.wait_until_ready()
        strategy = strategy_of_chief(self._cluster, protocol)
        self._coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
        with strategy.scope():
            factor = tf.Variable(2.0)
        signature = [tf.TensorSpec([None], tf.float32)]
        self._double = tf.function(lambda x: x * factor, input_signature=signature)

    def _start(self, job: str, index: int) -> Task:
        log = self._folder / f"{job}{index}.log"
        return Task(self._cluster, job, index, self._protocol, log)

    def _schedule(self, value: Any, count: int) -> list[Any]:
        return [self._coordinator.schedule(self._double, args=(value,)) for _ in range(count)]

    def _check(self, value: Any, results: list[Any]) -> None:
        within(RECOVERED_S, self._coordinator.join)
        for result in results:
            np.testing.assert_array_equal(result.fetch(), value * 2)

    def kill_one(self, numbers: random.Random) -> None:
        """Kills a worker while closures run, starts its successor, and waits until that takes part."""
        value = np.arange(numbers.choice(SIZES), dtype="f")
        self._check(value, self._schedule(value, 4))
        doomed = numbers.randrange(2)
        results = self._schedule(value, CLOSURES)
        # Not a wait for anything: the moment is what is random.
        time.sleep(numbers.random() * LONGEST_S)
        self._workers[doomed].kill()
        self._check(value, results)
        self._workers[doomed] = self._start("worker", doomed)
        self._workers[doomed].wait_until_ready()
        end = time.monotonic() + RECOVERED_S
        while not self._takes_part(doomed):
            assert time.monotonic() < end, "the worker's successor gets no closures"
            self._check(value, self._schedule(value, 4))

    def _takes_part(self, index: int) -> bool:
        """Whether the worker has received tensors; over gRPC nothing tells."""
        if self._protocol != "grpc+rdma":
            return True
        paths = self._workers[index].ask("stats")["paths"]
        return any(counts["received_tensors"] for counts in paths.values())

    def close(self) -> None:
        """Kills all."""
        for task in (*self._workers, self._server):
            task.kill()


def run(folder: Path, times: int, seed: int, protocol: str = "grpc+rdma") -> None:
    """Kills workers `times` times."""
    numbers = random.Random(seed)
    chief = Chief(protocol, folder)
    try:
        for _ in range(times):
            chief.kill_one(numbers)
    finally:
        chief.close()


def main() -> None:
    """From the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=100)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    parser.add_argument("--protocol", default="grpc+rdma")
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    _pywrap_stacktrace_handler.InstallStacktraceHandler()  # a crash tells where it was
    with tempfile.TemporaryDirectory() as folder:
        run(Path(folder), options.times, options.seed, options.protocol)
    print(f"{options.times} killed workers, every closure gave its value")
    sys.stdout.flush()
    # Coordinators keep threads that wait for workers for ever.
    os._exit(0)


if __name__ == "__main__":
    main()
