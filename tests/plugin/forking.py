# SPDX-License-Identifier: Apache-2.0
"""Forks while it has a server: forking.py PROTOCOL SCENARIO...

Prints what processes saw, by scenario, as JSON. What a child does here works without the plugin too: most of
TensorFlow's operations need threads that only the parent has.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
import numpy as np
import tensorflow as tf

import rdmatensor.tensorflow
from support.clusters import Task
from support.ports import free_ports
from support.waits import until, until_it_ends

# Above INLINE_BYTES, hence in the arena, and below what TensorFlow divides among threads.
ELEMENTS = 5000
# Below PLAN_COPY_BYTES: tensors that are planned lie in slots.
PLACED = 4000
CHILD_S = 20.0

shared: list[tf.Variable] = []


def constant(value: float) -> tf.Tensor:
    """A tensor of new memory."""
    return tf.constant(np.full(ELEMENTS, value, "f"))


def variables(count: int, value: float) -> list[tf.Variable]:
    """Variables with memory of their own."""
    return [tf.Variable(constant(value)) for _ in range(count)]


def contents(tensors: list[Any]) -> list[list[float]]:
    """The values that each has."""
    return [np.unique(each.numpy()).tolist() for each in tensors]


def forked(action: Callable[[], Any], meanwhile: Callable[[], Any] = lambda: None) -> Any:
    """What `action` returns in a child, which begins when the parent has done `meanwhile`."""
    reader, writer = os.pipe()
    go, begun = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.read(go, 1)
            said = json.dumps(action())
        except BaseException as error:
            said = json.dumps(repr(error))
        os.write(writer, said.encode())
        os._exit(0)
    os.close(writer)
    meanwhile()
    os.write(begun, b"1")
    os.close(begun)
    os.close(go)
    until_it_ends(child, CHILD_S)
    with os.fdopen(reader) as answer:
        return json.loads(answer.read() or '"the child hangs"')


def plain() -> Any:
    """The child allocates, writes in place and frees, while the parent allocates too."""
    old = variables(4, 1.0)
    new: list[tf.Variable] = []

    def in_child() -> Any:
        constants = [constant(7.0) for _ in range(8)]
        for each in old:
            each.assign_add(constants[0])
        seen = [contents(constants), contents(old)]
        old.clear()
        constants.clear()
        return [*seen, contents([constant(9.0) for _ in range(8)])]

    child = forked(in_child, meanwhile=lambda: new.extend(variables(8, 1.0)))
    return [child, contents(old), contents(new)]


def _work(value: float) -> Any:
    made = constant(value)
    for each in shared:
        each.assign_add(made)
    return contents([made, *shared])


def pool() -> Any:
    """Workers of multiprocessing."""
    shared[:] = variables(2, 1.0)
    with multiprocessing.get_context("fork").Pool(2) as workers:
        seen = workers.apply(_work, (5.0,))
    return [seen, contents(shared)]


def py_function() -> Any:
    """A child of one of TensorFlow's own threads."""
    kept = variables(2, 1.0)
    seen = []

    def fork_there(value: Any) -> Any:
        seen.append(forked(lambda: contents([constant(6.0), value])))
        return value + 1

    result = tf.function(lambda x: tf.py_function(fork_there, [x], tf.float32))(constant(2.0))
    return [seen, contents([result]), contents(kept)]


def grandchild() -> Any:
    """It sees what its parent, the child, wrote."""
    kept = variables(1, 1.0)

    def in_grandchild() -> Any:
        seen = contents(kept)
        kept[0].assign_add(constant(10.0))
        return [seen, contents(kept)]

    def in_child() -> Any:
        kept[0].assign_add(constant(1.0))
        return [forked(in_grandchild), contents(kept)]

    return [forked(in_child), contents(kept)]


def programs() -> Any:
    """Other programs, with and without what Python forks for."""
    kept = variables(2, 1.0)
    said = [
        subprocess.run(
            ["echo", "here"], stdout=subprocess.PIPE, timeout=CHILD_S, check=True, preexec_fn=each
        ).stdout.decode()
        for each in (None, lambda: None)
    ]
    return [said, contents(kept)]


def _placed() -> int:
    return int(rdmatensor.tensorflow.stats()["paths"]["static"]["received_tensors"])


def received() -> Any:
    """Tensors that came from a peer, in places that the child must not give back."""
    cluster = {job: [f"127.0.0.1:{free_ports(1)[0]}"] for job in ("chief", "worker")}
    worker = Task(cluster, "worker", 0, PROTOCOL, Path(tempfile.mkdtemp()) / "worker")
    try:
        worker.wait_until_ready()
        tf.config.experimental_connect_to_cluster(
            tf.train.ClusterSpec(cluster), job_name="chief", task_index=0, protocol=PROTOCOL
        )

        @tf.function
        def there(value: Any) -> Any:
            with tf.device("/job:worker/task:0"):
                made = tf.fill([PLACED], value)
            with tf.device("/job:chief/task:0"):
                return tf.identity(made)

        end = time.monotonic() + CHILD_S
        while PROTOCOL != "grpc" and not _placed():  # the first ones go before places are agreed on
            assert time.monotonic() < end, rdmatensor.tensorflow.stats()
            there(tf.constant(0.0))
        kept = [there(tf.constant(value)) for value in (1.0, 2.0)]

        def in_child() -> Any:
            seen = contents(kept)
            kept.clear()
            return seen

        seen = forked(in_child)
        for value in (3.0, 4.0, 5.0):
            there(tf.constant(value)).numpy()
        return [seen, contents(kept)]
    finally:
        worker.kill()


def locked() -> Any:
    """While a thread waits for new memory of the arena, which it does under the allocator's lock."""
    held = Path(os.environ["FAULTS_HOLD_ALLOC"])
    kept = variables(1, 1.0)
    held.touch()
    # Of what is larger than what is left. Python's lock is not held meanwhile.
    thread = threading.Thread(target=lambda: tf.fill([20 << 20], 1.0), daemon=True)
    thread.start()
    until("the arena does not grow", held.with_suffix(".held").exists, CHILD_S)

    def in_child() -> Any:
        made = contents([constant(7.0)])
        kept.clear()
        return made

    seen = forked(in_child)
    held.unlink()
    thread.join(CHILD_S)
    return [seen, thread.is_alive(), contents(kept)]


if __name__ == "__main__":
    PROTOCOL = sys.argv[1]
    if "received" not in sys.argv:
        server = tf.distribute.Server(
            tf.train.ClusterSpec({"worker": [f"127.0.0.1:{free_ports(1)[0]}"]}),
            job_name="worker",
            task_index=0,
            protocol=PROTOCOL,
        )
    print(json.dumps({name: globals()[name]() for name in sys.argv[2:]}), flush=True)
    os._exit(0)
