# SPDX-License-Identifier: Apache-2.0
"""Eager operations while the way is cut and heals:
failback_client.py CLUSTER_JSON PROTOCOL CUT_FILE [streams | disturbed CALM_FILE].

All copies of a client belong to one step of TensorFlow's, which never ends: a loss must not outlive the
operations that it hit. Prints, as JSON, what it counted.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import tensorflow as tf

import rdmatensor.tensorflow
from plugin.remote_client import TASK0, around, connect

LIMIT_S = 30.0
LOST = (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.CancelledError)
CHANGES, BURST = 5, 40


def works(number: int) -> bool:
    """Small and large tensors to both tasks and back; False if a connection was lost meanwhile."""
    try:
        for size in (10, 100_000):
            sent = np.full(size, number, "f")
            np.testing.assert_array_equal(around(sent), sent)
    except LOST:
        return False
    return True


def repeat(until: Callable[[], bool]) -> int:
    """Makes operations until that holds and they work; how many failed."""
    end = time.monotonic() + LIMIT_S
    failed = number = 0
    while True:
        number += 1
        fine = works(number)
        failed += not fine
        if fine and until():
            return failed
        assert time.monotonic() < end, rdmatensor.tensorflow.peers()


def states() -> set[str]:
    """How this process receives."""
    return {p["state"] for p in rdmatensor.tensorflow.peers() if p["direction"] == "receive"}


def calls(way: str) -> int:
    """How many went that way to the first task."""
    task = rdmatensor.tensorflow.stats()["control"]["/job:worker/replica:0/task:0"]
    return task["channel_calls"] if way == "channel" else task["grpc_calls"]


def stream(cut: Path, calm: Path | None) -> None:
    """Numbers are streamed into a queue on a task while the way comes and goes. Each arrives once, in
    order, or is lost with a channel. `calm`: calls are disturbed instead of the way, but for those that
    make the queue and read it, since they cannot be repeated."""
    with tf.device(TASK0):
        queue = tf.queue.FIFOQueue(1_000_000, [tf.int64], shapes=[()])
    queue.size().numpy()
    number = 0
    rounds = []

    def go_on(way: str, change: Callable[[], None] = lambda: None) -> None:
        """Streams, changes the way meanwhile, and goes on until a hundred calls went the new way and
        the task answers."""
        nonlocal number
        end = time.monotonic() + LIMIT_S
        first = number
        failed = False
        target = calls(way) + 100
        while True:
            assert time.monotonic() < end, rdmatensor.tensorflow.stats()["control"]
            try:
                for _ in range(BURST):
                    number += 1
                    if number == first + BURST // 2:
                        change()
                    with tf.device(TASK0):
                        queue.enqueue(tf.constant(number, tf.int64))
                queue.size().numpy()
            except tf.errors.OpError as error:
                # Or of one whose input was lost, which the task says when it comes to it.
                assert isinstance(error, LOST) or "find the relevant tensor" in str(error), error
                failed = True
                tf.experimental.async_clear_error()
            else:
                if calls(way) >= target:
                    break
        rounds.append((way, first, number, failed))

    if calm:
        calm.unlink()
        while len(rounds) < 4 * CHANGES:
            go_on("channel")
        calm.touch()
        go_on("channel")  # what was under way has failed or come
    else:
        go_on("channel")
        for _ in range(CHANGES):
            go_on("grpc", cut.touch)
            go_on("channel", cut.unlink)
    got = queue.dequeue_many(queue.size()).numpy()
    assert (np.diff(got) > 0).all(), got[np.flatnonzero(np.diff(got) <= 0)]
    for way, first, last, failed in rounds:
        came = ((got > first) & (got <= last)).sum()
        # A failure may be told late, and so with the next round. Where channels end by the dozen,
        # TensorFlow does not raise every one that it was told of.
        assert failed or calm or came >= last - first - BURST, (way, first, last, came, rounds)
    print(json.dumps({"sent": number, "came": len(got), "rounds": rounds}))


def main() -> None:
    """See the module."""
    cut = Path(sys.argv[3])
    connect()
    if sys.argv[4:]:
        stream(cut, Path(sys.argv[5]) if sys.argv[4] == "disturbed" else None)
        sys.stdout.flush()
        os._exit(0)
    before = repeat(lambda: states() == {"ready"})
    cut.touch()
    during = repeat(lambda: states() == {"rpc"})
    cut.unlink()
    after = repeat(lambda: states() == {"ready"})
    stats = rdmatensor.tensorflow.stats()
    print(json.dumps({"failed": [before, during, after], "failbacks": stats["failbacks"]}))
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
