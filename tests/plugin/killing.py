# SPDX-License-Identifier: Apache-2.0
"""Kills a task at a random moment of a step, again and again: python -m plugin.killing --times N.

Each step must end with an error that a killed task explains, or with the right value, and the successor of
the task must serve new sessions. `make test SUITE=kills` runs it; test_kills.py has a short form.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from support.clusters import STEP_S, Cluster, within
from support.graphs import TASK1, Session, abandon, cross, v1

EXPECTED = (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.CancelledError)
LONGEST_STEP_S = 0.03


def _graph() -> Any:
    """A step with calls, fed and fetched values, and tensors in both directions."""
    with tf.device(TASK1):
        fed = v1.placeholder(tf.float32, [None])
        large = fed * 2
        small = tf.reduce_sum(fed[:4])
    return fed, [large, cross(large), cross(small)]


def one(cluster: Cluster, numbers: random.Random, size: int) -> str:
    """What the step said in which the task was killed."""
    opened = Session(cluster, _graph)
    fed, results = opened.built
    value = np.arange(size, dtype="f")
    ended: list[BaseException] = []

    def steps() -> None:
        try:
            while True:
                doubled, crossed, _ = opened.raw.run(results, {fed: value})
                np.testing.assert_array_equal(doubled, value * 2)
                np.testing.assert_array_equal(crossed, value * 2)
        except BaseException as error:
            ended.append(error)

    within(STEP_S, lambda: opened.raw.run(results, {fed: value}))
    runner = threading.Thread(target=steps, daemon=True)
    runner.start()
    # Not a wait for anything: the moment is what is random.
    time.sleep(numbers.random() * LONGEST_STEP_S)
    cluster.tasks[1].kill()
    runner.join(STEP_S)
    assert not runner.is_alive(), "a step hangs after its task was killed"
    assert isinstance(ended[0], EXPECTED), repr(ended[0])
    abandon(opened.raw)
    cluster.restart(1)
    return type(ended[0]).__name__


def run(folder: Path, times: int, seed: int) -> dict[str, int]:
    """How often each kind of error was raised."""
    numbers = random.Random(seed)
    said: dict[str, int] = {}
    cluster = Cluster(["grpc+rdma"] * 2, folder)
    try:
        for _ in range(times):
            kind = one(cluster, numbers, numbers.choice([4, 2_000, 300_000]))
            said[kind] = said.get(kind, 0) + 1
    finally:
        cluster.close()
    return said


def main() -> None:
    """From the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        print(f"{options.times} kills, no hang: {run(Path(folder), options.times, options.seed)}")
    sys.exit(0)


if __name__ == "__main__":
    main()
