# SPDX-License-Identifier: Apache-2.0
"""A process of bench_asynchronous.py: trains a small network on digits, and tells when it knows them.

Its gradient takes `pad` seconds, most of which it sleeps, as if the network were larger: so the processors
stay free, and processes do not disturb each other.
"""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np

import rdmatensor.train as rt
from asynchronous_model import BATCH, Network
from line import serve
from rdmatensor import DeadlineExceeded, Device, Group, Store
from rdmatensor.errors import ConnectionRefused
from rdmatensor.train.run.membership import Membership

PATIENCE = 100.0
SYNCHRONOUS = "synchronous"
WAYS: dict[str, Any] = {
    "PullGossip": lambda: rt.sync.PullGossip(),
    "PushGossip": lambda: rt.sync.PushGossip(),
    "SGP": lambda: rt.sync.SGP(),
    "EASGD": lambda: rt.sync.EASGD(period=4),
    "SSP": lambda: rt.sync.SSP(slack=3),
    "Decoupled": lambda: rt.sync.Decoupled(period=20, grace=0.02),
}


class Run(Membership):
    """This process's place, its device and its group."""

    def __init__(self) -> None:
        self.rank, self.size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.timeout = PATIENCE
        port = int(os.environ["MASTER_PORT"])
        self.device = Device(f"rank {self.rank}", port=port if self.rank == 0 else 0)
        root, end = (None if self.rank == 0 else f"127.0.0.1:{port}"), time.monotonic() + PATIENCE
        while True:
            try:
                self.group = Group(self.device, self.rank, self.size, root, "bench", PATIENCE)
                return
            except ConnectionRefused:
                if time.monotonic() > end:
                    raise
                time.sleep(0.05)


def train(
    run: Run, way: str, seed: int, rate: float, target: float, pad: float, limit: float
) -> float:
    """Seconds until this process's model reaches the target; `limit` if it does not before."""
    network, numbers = Network(seed), np.random.default_rng([seed, run.rank])
    sync = None if way == SYNCHRONOUS else WAYS[way]()
    device, group = run.device, run.group
    assert device is not None and group is not None
    with Store(device, run.rank, run.size, 0, name=f"{way} {seed}") as reached:
        addresses = group.all_gather(np.frombuffer(device.address.ljust(64).encode(), np.uint8))
        for other, address in enumerate(addresses.reshape(run.size, 64)):
            if other != run.rank:
                reached.connect(other, address.tobytes().decode().strip(), PATIENCE)
        following = sync.begin(run, network.weights) if sync is not None else 0
        group.barrier()
        begin, found, steps = time.monotonic(), limit, 0
        while True:
            started = time.monotonic()
            rows = numbers.integers(0, len(network.train[1]), BATCH)
            gradient = network.gradient(network.train[0][rows], network.train[1][rows])
            if steps % 5 == 0 and found == limit and network.accuracy() >= target:
                found = time.monotonic() - begin
                reached.set_clock(1)
            time.sleep(max(0.0, started + pad - time.monotonic()))
            if sync is None:
                # All of them stop together.
                both = np.append(gradient, np.float32(found < limit or started - begin > limit))
                group.all_reduce(both, out=both)
                gradient, stop = both[:-1] / run.size, both[-1] == run.size
            else:
                stop = started - begin > limit or (found < limit and _all(reached))
            steps += 1
            network.weights -= rate * gradient
            if sync is not None and steps >= following:
                following = sync.exchange(network.weights, steps, rate)
            if stop:
                break
        if sync is not None:
            sync.finish()
        group.barrier()
        if sync is not None:
            sync.close()
    return found


def _all(reached: Store) -> bool:
    try:
        reached.wait_clocks(1, timeout=0)
    except DeadlineExceeded:
        return False
    return True


def main() -> None:
    run = Run()
    serve({"train": lambda pads, **order: train(run, pad=pads[run.rank], **order)})


if __name__ == "__main__":
    main()
