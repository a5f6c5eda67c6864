# SPDX-License-Identifier: Apache-2.0
"""Runs eager operations while the client and its tasks move to a better transport:
better_client.py CLUSTER_JSON PROTOCOL FAULTS.

Says when it is over tcp, puts FAULTS in force when it is told, and prints, as JSON, what came of the rest.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

import rdmatensor.tensorflow
from plugin.remote_client import TASK0, around, connect

LIMIT_S = 40.0
TASKS = [f"/job:worker/replica:0/task:{index}" for index in (0, 1)]


def received_over() -> set[str]:
    """The transports by which this process receives."""
    return {p["transport"] for p in rdmatensor.tensorflow.peers() if p["direction"] == "receive"}


def called_over() -> set[str]:
    """The transports by which it calls the tasks."""
    control: Any = rdmatensor.tensorflow.stats()["control"]
    return {control[task]["why"] for task in TASKS}


def main() -> None:
    """See the module."""
    connect()
    with tf.device(TASK0):
        queue = tf.queue.FIFOQueue(1_000_000, [tf.int64], shapes=[()])
    number = 0

    def work(holds: Callable[[], bool]) -> None:
        """Runs operations and a stream until the condition holds."""
        nonlocal number
        end = time.monotonic() + LIMIT_S
        while not holds():
            assert time.monotonic() < end, rdmatensor.tensorflow.stats()
            for _ in range(20):
                number += 1
                with tf.device(TASK0):
                    queue.enqueue(tf.constant(number, tf.int64))
            for size in (10, 100_000):
                sent = np.full(size, number, "f")
                np.testing.assert_array_equal(around(sent), sent)

    work(lambda: received_over() == called_over() == {"tcp"})
    print("over tcp", flush=True)
    sys.stdin.readline()
    rdmatensor.config.set("FAULTS", sys.argv[3])
    work(lambda: received_over() == called_over() == {"shm"})
    work(iter([False] * 3 + [True]).__next__)
    came = queue.dequeue_many(queue.size()).numpy().tolist()
    stats = rdmatensor.tensorflow.stats()
    print(json.dumps({"sent": number, "came": came, "moves": stats["moves"]}), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
