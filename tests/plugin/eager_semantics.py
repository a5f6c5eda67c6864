# SPDX-License-Identifier: Apache-2.0
"""Drives workers and a parameter server by eager operations, and prints what came of each case:
eager_semantics.py PROTOCOL [CLUSTER_JSON, of a chief that leaves without closing anything].

The output must be the same over any protocol: values, and types and texts of errors."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
import numpy as np
import tensorflow as tf
from tensorflow.python.distribute.coordinator import cluster_coordinator
from tensorflow.python.eager import cancellation

import rdmatensor.tensorflow
from support.clusters import Task
from support.coordinators import strategy_of_chief
from support.ports import free_ports

WORKER = "/job:worker/replica:0/task:0/device:CPU:0"
OTHER = "/job:worker/replica:0/task:1/device:CPU:0"
SERVER = "/job:ps/replica:0/task:0/device:CPU:0"
IN_FLIGHT = 1000
LATE_S = 30.0


def told(action: Callable[[], Any]) -> Any:
    """The value, or the kind of error, its first line, and how a coordinator would understand it."""
    try:
        return action()
    except Exception as error:
        line = re.sub(r"\d{4,}", "N", str(error).splitlines()[0])
        return {
            "error": type(error).__name__,
            "text": re.sub(r" \[Op:.*", "", line),
            "server failed": cluster_coordinator._is_ps_failure(error),
            "worker failed": cluster_coordinator._is_worker_failure(error),
            "words of RPC": "GRPC error information from remote target" in str(error),
        }


class Cases:
    """One chief and its variables. Each public method is a case."""

    def __init__(
        self, protocol: str, cluster: dict[str, list[str]], tasks: dict[str, Task]
    ) -> None:
        self._tasks = tasks
        self._strategy = strategy_of_chief(cluster, protocol)
        self._coordinator = tf.distribute.coordinator.ClusterCoordinator(self._strategy)
        with self._strategy.scope():
            self._counter = tf.Variable(tf.constant(0, tf.int64))
            self._table = tf.Variable(tf.range(1000, dtype=tf.float32))

        @tf.function
        def count() -> Any:
            self._counter.assign_add(1)
            return tf.reduce_sum(self._table)

        @tf.function
        def divide(by: Any) -> Any:
            return tf.debugging.check_numerics(tf.constant(1.0) / by, "divided by nothing")

        self._count, self._divide = count, divide

    def operations(self) -> Any:
        """Values that travel between all tasks, in operations and functions."""
        with tf.device(WORKER):
            there = tf.range(5000, dtype=tf.float32) * 2.0
        with tf.device(OTHER):
            elsewhere = there + 1.0
        with tf.device(SERVER):
            total = tf.reduce_sum(there + elsewhere)
        with tf.device(WORKER):
            function = self._divide(tf.constant(4.0))
        text = tf.strings.join([tf.constant("a" * 20000), "b"])
        with tf.device(OTHER):
            joined = tf.strings.length(text)
        return [float(total), float(function), int(joined), elsewhere.numpy()[-1].item()]

    def scheduled(self) -> Any:
        results = [self._coordinator.schedule(self._count) for _ in range(20)]
        self._coordinator.join()
        return [int(self._counter.numpy()), *{float(each.fetch()) for each in results}]

    def in_flight(self) -> Any:
        before = int(self._counter.numpy())
        for _ in range(IN_FLIGHT):
            self._coordinator.schedule(self._count)
        self._coordinator.join()
        return int(self._counter.numpy()) - before

    def function_raises(self) -> Any:
        with tf.device(WORKER):
            raised = told(lambda: self._divide(tf.constant(0.0)).numpy())
            after = float(self._divide(tf.constant(2.0)))
        return [raised, after]

    def operation_raises(self) -> Any:
        def bad() -> Any:
            with tf.device(WORKER):
                return tf.raw_ops.Reshape(tensor=tf.range(6), shape=tf.constant([4, 2])).numpy()

        with tf.device(WORKER):
            before = tf.constant(1.0) * 3.0
        raised = told(bad)
        with tf.device(WORKER):
            after = before + 1.0
        return [raised, float(after)]

    def scheduled_raises(self) -> Any:
        self._coordinator.schedule(self._divide, args=(tf.constant(0.0),))
        raised = told(self._coordinator.join)
        return [raised, float(self._coordinator.schedule(self._count).fetch())]

    def cancelled(self) -> Any:
        """A function that waits for ever on the worker, until it is cancelled."""

        with tf.device(WORKER):
            queue = tf.queue.FIFOQueue(1, [tf.float32], shared_name="never")
        # TensorFlow touches a queue after the operation that it cancelled is over. A queue that only this
        # call kept could be freed by then, and the worker would crash.
        self._queue = queue

        @tf.function
        def wait() -> Any:
            with tf.device(WORKER):
                return queue.dequeue()

        manager = cancellation.CancellationManager()
        cancelable = manager.get_cancelable_function(wait.get_concrete_function())
        came: list[Any] = []

        def run() -> Any:
            value = cancelable()
            return (value[0] if isinstance(value, (list, tuple)) else value).numpy().item()

        thread = threading.Thread(target=lambda: came.append(told(run)))
        thread.start()
        thread.join(1.0)
        waited = not came
        manager.start_cancel()
        thread.join(LATE_S)
        if not came:
            return "hangs"
        # Where the cancellation is noticed decides about the text.
        return [waited, came[0]["error"], float(self._coordinator.schedule(self._count).fetch())]

    def worker_is_lost(self) -> Any:
        """What an operation on a killed worker says; the coordinator goes on with the other one."""
        self._tasks["worker 1"].kill()

        def use() -> Any:
            with tf.device(OTHER):
                return (tf.constant(1.0) + 1.0).numpy()

        lost = told(use)
        for _ in range(10):
            self._coordinator.schedule(self._count)
        self._coordinator.join()
        return [lost["error"], lost["worker failed"], lost["server failed"]]

    def server_is_lost(self) -> Any:
        self._tasks["ps 0"].kill()
        self._coordinator.schedule(self._count)
        lost = told(self._coordinator.join)
        return [lost["error"], lost["server failed"], lost["worker failed"]]


CASES = (
    Cases.operations,
    Cases.scheduled,
    Cases.in_flight,
    Cases.function_raises,
    Cases.operation_raises,
    Cases.scheduled_raises,
    Cases.cancelled,
    Cases.worker_is_lost,
    Cases.server_is_lost,
)


def main() -> None:
    """Run all cases, after another chief has used the same servers."""
    protocol = sys.argv[1]
    if len(sys.argv) > 2:
        np.testing.assert_equal(Cases(protocol, json.loads(sys.argv[2]), {}).scheduled()[0], 20)
        os._exit(0)
    ports = [f"127.0.0.1:{port}" for port in free_ports(5)]
    cluster = {"chief": ports[:1], "worker": ports[1:3], "ps": ports[3:4]}
    folder = Path(tempfile.mkdtemp())
    tasks = {
        f"{job} {index}": Task(cluster, job, index, protocol, folder / f"{job}{index}.log")
        for job, index in (("worker", 0), ("worker", 1), ("ps", 0))
    }
    try:
        for task in tasks.values():
            task.wait_until_ready()
        former = json.dumps(cluster | {"chief": ports[4:]})
        subprocess.run([sys.executable, __file__, protocol, former], check=True, timeout=60)
        cases = Cases(protocol, cluster, tasks)
        said = {}
        for case in CASES:
            said[case.__name__] = case(cases)
            print(case.__name__, said[case.__name__], file=sys.stderr, flush=True)
        control = rdmatensor.tensorflow.stats().get("control", {})
        print(json.dumps({"said": said, "control": control}), flush=True)
    finally:
        for task in tasks.values():
            task.kill()
    # Coordinators keep threads that wait for workers for ever.
    os._exit(0)


if __name__ == "__main__":
    main()
