# SPDX-License-Identifier: Apache-2.0
"""A client that drives a cluster by eager operations: remote_client.py CLUSTER_JSON PROTOCOL.

Every scenario checks the values that it gets. Prints, as JSON, what the client counted in each.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context

import rdmatensor.tensorflow
from support.ports import free_ports

TASK0, TASK1 = "/job:worker/task:0", "/job:worker/task:1"
TYPES = [
    *(tf.float32, tf.float64, tf.half, tf.bfloat16, tf.complex64, tf.bool),
    *(tf.int8, tf.int16, tf.int32, tf.int64, tf.uint8, tf.uint16, tf.uint32, tf.uint64),
]
SHAPES = [(), (0,), (3, 0, 2), (7,), (5000,)]
LARGE = (1 << 20) + 3


def content(dtype: Any, shape: tuple[int, ...], first: int = 1) -> Any:
    """Numbers that differ from element to element."""
    return (
        (np.arange(first, first + int(np.prod(shape))) % 120)
        .reshape(shape)
        .astype(dtype.as_numpy_dtype)
    )


def around(value: Any) -> Any:
    """`value` after it went from here to task 0, from there to task 1, and back."""
    here = tf.constant(value)
    with tf.device(TASK0):
        there = tf.identity(here)
    with tf.device(TASK1):
        further = tf.identity(there)
    assert "task:0" in there.device, there.device
    assert "task:1" in further.device, further.device
    return further.numpy()


def values() -> int:
    """Every type in every shape; the number of tensors."""
    cases = [(dtype, shape) for dtype in TYPES for shape in SHAPES]
    cases += [(tf.float32, (LARGE,)), (tf.int8, (LARGE,))]
    for number, (dtype, shape) in enumerate(cases):
        sent = content(dtype, shape, number)
        got = around(sent)
        assert got.dtype == sent.dtype
        assert got.shape == sent.shape
        assert got.tobytes() == sent.tobytes(), (dtype, shape)
    return len(cases)


def strings() -> int:
    """What gRPC carries in any case."""
    words = np.array([b"", b"a", b"\0" * 100_000], dtype=object)
    assert list(around(words)) == list(words)
    return 1


def function() -> int:
    """A function over both tasks, whose inputs lie on either and here."""
    mixed = tf.function(_mixed)
    for size in (4, 100_000):
        here = tf.constant(content(tf.float32, (size,)))
        with tf.device(TASK0):
            on0 = tf.identity(here) * 2
        with tf.device(TASK1):
            on1 = tf.identity(here) * 3
        first, second = mixed(here, on0, on1)
        expected = here.numpy()
        np.testing.assert_array_equal(first.numpy(), expected * 6)
        np.testing.assert_array_equal(second.numpy(), expected * 7)
    return 1


def _mixed(here: Any, on0: Any, on1: Any) -> Any:
    with tf.device(TASK0):
        total = here + on0 + on1
    with tf.device(TASK1):
        return total, total + here


def source_gone() -> int:
    """Tensors outlive those that they were made of, and memory is used again meanwhile."""
    kept = []
    for number in range(8):
        here = tf.constant(content(tf.float32, (300_000,), number))
        with tf.device(TASK0):
            there = tf.identity(here)
        with tf.device(TASK1):
            kept.append(tf.identity(there))
        del here, there
    gc.collect()
    for number, tensor in enumerate(kept):
        np.testing.assert_array_equal(tensor.numpy(), content(tf.float32, (300_000,), number))
    return len(kept)


def variable() -> int:
    """A variable on task 0 that is set from here and read by task 1, step by step."""
    with tf.device(TASK0):
        held = tf.Variable(tf.zeros([50_000]))
    for number in range(5):
        held.assign(content(tf.float32, (50_000,), number))
        with tf.device(TASK1):
            read = held + 1
        held.assign_add(tf.ones([50_000]))
        np.testing.assert_array_equal(read.numpy(), content(tf.float32, (50_000,), number) + 1)
        np.testing.assert_array_equal(held.numpy(), content(tf.float32, (50_000,), number) + 1)
    return 5


def rows() -> int:
    """A table on task 0, whose rows are read and changed by single operations and by functions."""
    with tf.device(TASK0):
        table = tf.Variable(tf.zeros([1000, 64]))

    def change(ids: Any) -> Any:
        table.scatter_sub(tf.IndexedSlices(tf.ones([4, 64]), ids))
        with tf.device(TASK1):
            return tf.gather(table, ids) + 0

    for times, each in enumerate((change, change, tf.function(change)), 1):
        read = each(tf.constant([7, 999, 7, 0])).numpy()
        expected = np.array([-2, -1, -2, -1], np.float32) * times
        np.testing.assert_array_equal(read, np.repeat(expected[:, None], 64, 1))
    return 3


def again() -> int:
    """The cluster is joined a second time, as programs do that learn of new tasks."""
    connect()
    return values()


def added_back() -> int:
    """Task 0 leaves the cluster and comes back, as when a coordinator recovers: its context is closed and
    created anew, under the same number, while the connections stay."""
    whole = context.get_server_def()
    rest = type(whole).FromString(whole.SerializeToString())
    (workers,) = [job for job in rest.cluster.job if job.name == "worker"]
    del workers.tasks[0]
    context.update_server_def(rest)
    context.update_server_def(whole)
    return values()


def after_reset() -> int:
    """And a third time, by a new context, as notebooks and tests do that begin anew. The old one's
    connections end meanwhile, which the first operations may learn by an error; none waits for ever."""
    context._reset_context()
    connect()
    try:
        return values()
    except tf.errors.UnavailableError:
        return values()


SCENARIOS = (values, function, source_gone, variable, rows, again, added_back, after_reset, strings)


def connect() -> None:
    """Join the cluster as a task of its own, on a port that nobody else gets: TensorFlow would pick any."""
    cluster, protocol = json.loads(sys.argv[1]), sys.argv[2]
    cluster["client"] = [f"127.0.0.1:{free_ports(1)[0]}"]
    tf.config.experimental_connect_to_cluster(
        tf.train.ClusterSpec(cluster), job_name="client", protocol=protocol
    )


def main() -> None:
    """Connect and run all."""
    # The context is made before it is known what the program will ask for, as in most programs.
    assert int(tf.constant(1) + 1) == 2
    connect()
    said = {}
    for scenario in SCENARIOS:
        rdmatensor.tensorflow.reset_stats()
        said[scenario.__name__] = {
            "tensors": scenario(),
            "paths": rdmatensor.tensorflow.stats()["paths"],
            "peers": rdmatensor.tensorflow.peers(),
        }
    print(json.dumps(said), flush=True)
    # Servers cannot be stopped: leave without ceremony.
    os._exit(0)


if __name__ == "__main__":
    main()
