# SPDX-License-Identifier: Apache-2.0
"""The other processes as an asynchronous synchronizer sees them: their stores, and who can be reached."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import ConnectionFailure, DeadlineExceeded, DeviceError, RegionError
from ...store import Arrival, Store
from .base import Array

if TYPE_CHECKING:
    from ..process import Run

# Stores of a device have different names, and processes make them in the same order.
_numbers = count(1)
_ADDRESS = 280
# The clock of a process for which nobody waits.
FINISHED = 2**64 - 1
# Seconds between two attempts to reach a process that was lost.
_AGAIN = 1.0


class Members:
    """This process's store, connected to those of all others.

    A process that dies, or whose connection breaks, is left out. One that has come back, and has connected
    to this store, is reached again. All processes make it at the same time.
    """

    def __init__(self, run: Run, nbytes: int, slot_nbytes: int = 0, buffers: int = 2) -> None:
        assert run.device is not None
        assert run.group is not None
        self.rank, self.size = run.rank, run.size
        self.lost = 0
        """How often a process was lost."""
        self._patience = run.timeout
        self._away: dict[int, tuple[int, float]] = {}
        name = f"rdmatensor.train {next(_numbers)}"
        self.store = Store(run.device, run.rank, run.size, nbytes, slot_nbytes, name, buffers)
        self._server: threading.Thread | None = None
        address = np.zeros(_ADDRESS, np.uint8)
        own = run.device.address.encode()
        address[: len(own)] = list(own)
        addresses = run.group.all_gather(address, timeout=run.timeout).reshape(run.size, _ADDRESS)
        for other in self.others:
            self.store.connect(
                other, addresses[other].tobytes().rstrip(b"\0").decode(), run.timeout
            )
        run.group.barrier(timeout=run.timeout)

    @property
    def others(self) -> list[int]:
        return [rank for rank in range(self.size) if rank != self.rank]

    @property
    def reachable(self) -> list[int]:
        """The others that were not lost, or that have come back."""
        return [rank for rank in self.others if rank not in self._away or self._is_back(rank)]

    def pull(self, rank: int, into: Array, offset: int = 0) -> int | None:
        """Reads what the process published last. Returns its mark; None if the process is lost."""
        mark: int | None = self._try(rank, lambda: self.store.pull(rank, into, offset).mark)
        return mark

    def push(self, rank: int, data: Array, mark: int = 0) -> bool:
        """Sends to the process. False if it has not taken what came before, or is lost."""
        return bool(self._try(rank, lambda: self.store.push(rank, data, mark)))

    def arrivals(self) -> list[Arrival]:
        """What has arrived, at most one from each. The caller releases them."""
        found: list[Arrival] = []
        while len(found) < self.size - 1 and (arrival := self.store.take()) is not None:
            found.append(arrival)
        return found

    def serve(self, take: Callable[[Arrival | None], None], pause: float = 1.0) -> None:
        """Calls `take` for each arrival on a thread of its own, and with None after pauses, until close()."""

        def run() -> None:
            with suppress(DeviceError):  # the store is closed
                while True:
                    arrival = self.store.take(pause)
                    take(arrival)
                    if arrival is not None:
                        arrival.release()

        self._server = threading.Thread(target=run, name="rdmatensor-store", daemon=True)
        self._server.start()

    def wait_for_all(self) -> None:
        """Says that this process has finished, and serves the others until they have, or are gone."""
        self.store.set_clock(FINISHED)
        self.store.wait_clocks(FINISHED, self._patience)

    def close(self) -> None:
        self.store.close()
        if self._server is not None:
            self._server.join()

    def _try(self, rank: int, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except (ConnectionFailure, DeadlineExceeded):
            self.lost += 1
            self._away[rank] = self.store.member(rank).generation, time.monotonic()
            return None

    def _is_back(self, rank: int) -> bool:
        """Tries to reach a process that was lost, now and then, if it has connected to us since."""
        generation, tried = self._away[rank]
        member = self.store.member(rank)
        if not member.present or time.monotonic() < tried + _AGAIN:
            return False
        self._away[rank] = generation, time.monotonic()
        try:
            self.store.connect(rank, member.address, _AGAIN)
        except (ConnectionFailure, DeadlineExceeded, RegionError):
            return False
        del self._away[rank]
        return True
