# SPDX-License-Identifier: Apache-2.0
"""A process of bench_asynchronous.py: trains a small network on digits, and tells when it knows them."""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np

import rdmatensor.train as rt
from asynchronous_model import Network, train
from member import serve
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


class Synchronous:
    """All gradients are averaged in each step, in which all processes meet."""

    def __init__(self, run: Run, network: Network, rate: float) -> None:
        assert run.group is not None
        self.group, self.network, self.rate = run.group, network, rate

    def gradient(self, rows: Any) -> None:
        x, y = self.network.train
        self.found = self.network.gradient(x[rows], y[rows])

    def accuracy(self) -> float:
        return self.network.accuracy()

    def update(self, done: bool) -> bool:
        both = np.append(self.found, np.float32(done))
        self.group.all_reduce(both, out=both)
        self.network.weights -= self.rate * both[:-1] / self.group.size
        return bool(both[-1] == self.group.size)

    def close(self) -> None:
        self.group.barrier()


class Asynchronous(Synchronous):
    """One of rdmatensor.train's ways. In a store each process tells whether it is done."""

    def __init__(self, run: Run, network: Network, rate: float, way: str, seed: int) -> None:
        super().__init__(run, network, rate)
        self.steps, self.told = 0, False
        assert run.device is not None
        self.reached = Store(run.device, run.rank, run.size, 0, name=f"{way} {seed}")
        address = np.frombuffer(run.device.address.ljust(64).encode(), np.uint8)
        for other, each in enumerate(self.group.all_gather(address).reshape(run.size, 64)):
            if other != run.rank:
                self.reached.connect(other, each.tobytes().decode().strip(), PATIENCE)
        self.sync = WAYS[way]()
        self.following = self.sync.begin(run, network.weights)

    def update(self, done: bool) -> bool:
        self.steps += 1
        if done and not self.told:
            self.reached.set_clock(1)
            self.told = True
        self.network.weights -= self.rate * self.found
        if self.steps >= self.following:
            self.following = self.sync.exchange(self.network.weights, self.steps, self.rate)
        try:
            self.reached.wait_clocks(1, timeout=0)
        except DeadlineExceeded:
            return False
        return done

    def close(self) -> None:
        self.sync.finish()
        self.group.barrier()
        self.sync.close()
        self.reached.close()


def main() -> None:
    run = Run()

    def begin(way: str, seed: int, rate: float, pads: list[float], **order: float) -> float:
        network, numbers = Network(seed), np.random.default_rng([seed, run.rank])
        if way == SYNCHRONOUS:
            made = Synchronous(run, network, rate)
        else:
            made = Asynchronous(run, network, rate, way, seed)
        made.group.barrier()
        return train(made, network, numbers, pad=pads[run.rank], **order)

    serve({"train": begin})


if __name__ == "__main__":
    main()
