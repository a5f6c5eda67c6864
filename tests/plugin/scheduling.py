# SPDX-License-Identifier: Apache-2.0
"""Schedules many closures at once on a ClusterCoordinator: python -m plugin.scheduling --count N.

All of them must be applied exactly once, and the second N must need no more memory than the first.
`make test SUITE=schedules` runs it.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
import tensorflow as tf

import rdmatensor.tensorflow
from support.clusters import Task
from support.coordinators import strategy_of_chief
from support.ports import free_ports

JOBS = ("worker", "ps")
MIB = 1 << 20
# TensorFlow keeps some of what it has freed.
MAY_GROW_MIB = 64


def _resident(pid: int | str) -> int:
    """The memory of a process, in MiB."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") // MIB


def run(folder: Path, count: int) -> None:
    """Schedules `count` closures, three times, and prints what each round took."""
    ports = [f"127.0.0.1:{port}" for port in free_ports(3)]
    cluster = dict(zip(("chief", *JOBS), ([port] for port in ports), strict=True))
    tasks = [Task(cluster, job, 0, "grpc+rdma", folder / f"{job}.log") for job in JOBS]
    try:
        for task in tasks:
            task.wait_until_ready()
        strategy = strategy_of_chief(cluster, "grpc+rdma")
        coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
        with strategy.scope():
            counter = tf.Variable(tf.constant(0, tf.int64))

        @tf.function
        def step() -> None:
            counter.assign_add(1)

        pids = ["self", *(task.ask("pid") for task in tasks)]
        sizes = []
        for turn in range(1, 4):
            began = time.monotonic()
            for _ in range(count):
                coordinator.schedule(step)
            scheduled = time.monotonic() - began
            coordinator.join()
            took = time.monotonic() - began
            assert int(counter.numpy()) == turn * count, counter.numpy()
            sizes.append([_resident(pid) for pid in pids])
            print(
                f"{count} scheduled in {scheduled:.1f} s, applied in {took:.1f} s; "
                f"MiB of chief, worker, server: {sizes[-1]}",
                flush=True,
            )
        grown = [last - before for before, last in zip(sizes[1], sizes[2], strict=True)]
        assert max(grown) < MAY_GROW_MIB, grown
        print("control:", rdmatensor.tensorflow.stats()["control"], flush=True)
    finally:
        for task in tasks:
            task.kill()


def main() -> None:
    """From the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=10_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run(Path(folder), options.count)
    # Coordinators keep threads that wait for workers for ever.
    os._exit(0)


if __name__ == "__main__":
    main()
