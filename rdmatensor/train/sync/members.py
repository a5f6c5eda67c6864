# SPDX-License-Identifier: Apache-2.0
"""Reach the other processes of an asynchronous synchronizer: their stores, and who is there."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from ...errors import (
    Closed,
    ConnectionFailure,
    ConnectionLost,
    DeadlineExceeded,
    RdmaError,
    RegionError,
    UsageError,
)
from ...store import Arrival, Store
from ..run.membership import Array, Membership
from ..run.rejoin import Addresses, decoded, encoded, name_of_models

# The clock of a process for which nobody waits.
FINISHED = 2**64 - 1
# Seconds between two attempts to reach a process that was lost, at least and at most; and between two looks
# whether it has connected to us.
_AGAIN, _RARELY, _LOOK = 1.0, 30.0, 0.05
# An address may be another's by now, whose store has another rank.
_UNREACHED = (ConnectionFailure, DeadlineExceeded, RegionError, UsageError)


class Members:
    """A store of this process, connected to those of all others.

    A process that dies, or whose connection breaks, is left out. A thread tries to reach it again: often if
    it has connected to this store since, and ever more rarely where it was last, because two processes that
    have lost each other would both wait. All processes make it at the same time, but for one that comes back.
    """

    def __init__(
        self, run: Membership, nbytes: int, slot_nbytes: int = 0, buffers: int = 2
    ) -> None:
        assert run.device is not None
        self.rank, self.size = run.rank, run.size
        self.lost = 0
        """How often a process was lost."""
        self.losses = [0] * run.size
        """How often each process was lost."""
        self._patience = run.timeout
        # Who was lost, and when at the earliest to try to reach it.
        self._away: dict[int, float] = {}
        self._seeker: threading.Thread | None = None
        self._stirred = threading.Event()
        self._run = run
        self._models: Store | None = None
        self._offered = 0.0
        name = run.name_of_next_store()
        run.stores += 1
        self.store = Store(run.device, run.rank, run.size, nbytes, slot_nbytes, name, buffers)
        self._server: threading.Thread | None = None
        if run.group is None:
            self._come_back(run)
            return
        if not run.addresses:
            row = encoded(run.device.address)
            rows = run.group.all_gather(row, timeout=run.timeout).reshape(run.size, -1)
            run.addresses = decoded(rows)
            run.published = Addresses(run)
        for other in self.others:
            self.store.connect(other, run.addresses[other], run.timeout)
        run.group.barrier(timeout=run.timeout)

    def _come_back(self, run: Membership) -> None:
        """Reach one of the others at least. One that is stopped, or whose host is busy, may answer late."""
        end = time.monotonic() + run.timeout
        while True:
            unreached: dict[int, RdmaError] = {}
            for other in self.others:
                try:
                    self.store.connect(other, run.addresses[other], 2 * _AGAIN)
                except _UNREACHED as error:
                    unreached[other] = error
            if len(unreached) < len(self.others):
                break
            if time.monotonic() >= end:
                last = list(unreached.values())[-1]
                raise ConnectionLost(
                    f"rank {run.rank} comes back, but reaches none of the others within {run.timeout} s "
                    f"({last}): start all again",
                    "CONNECTION_LOST",
                ) from last
            time.sleep(_LOOK)
        for other in unreached:
            self._lose(other)

    def offer(self, x: Array, step: int) -> None:
        """Let a process that was lost read the model when it comes back. Call it now and then.

        With all there, it costs nothing, and otherwise a copy each second.
        """
        now = time.monotonic()
        if now < self._offered + _AGAIN:
            return
        self._offered = now
        if not any(rank in self._away or self.store.member(rank).gone for rank in self.others):
            return
        if self._models is None:
            device = self._run.device
            assert device is not None
            name = name_of_models(self.store.name)
            self._models = Store(device, self.rank, self.size, x.nbytes, 0, name)
        self._models.publish(x, step)

    @property
    def others(self) -> list[int]:
        """The ranks of the others."""
        return [rank for rank in range(self.size) if rank != self.rank]

    @property
    def reachable(self) -> list[int]:
        """The ranks of the others that were not lost, or that have come back."""
        return [rank for rank in self.others if rank not in self._away]

    def pull(self, rank: int, into: Array, offset: int = 0) -> int | None:
        """Read what the process published last. Return its mark; None if the process is lost."""
        mark: int | None = self._try(rank, lambda: self.store.pull(rank, into, offset).mark)
        return mark

    def push(self, rank: int, data: Array, mark: int = 0) -> bool:
        """Send to the process. Return False if it has not taken what came before, or is lost."""
        return bool(self._try(rank, lambda: self.store.push(rank, data, mark)))

    def arrivals(self) -> list[Arrival]:
        """Return what has arrived, at most one from each. The caller releases them."""
        found: list[Arrival] = []
        while len(found) < self.size - 1 and (arrival := self.store.take()) is not None:
            found.append(arrival)
        return found

    def serve(self, take: Callable[[Arrival | None], None], pause: float = 1.0) -> None:
        """Call `take` for each arrival on a thread of its own, and with None after pauses, until close()."""

        def run() -> None:
            with suppress(Closed):
                while True:
                    arrival = self.store.take(pause)
                    take(arrival)
                    if arrival is not None:
                        arrival.release()

        self._server = threading.Thread(target=run, name="rdmatensor-store", daemon=True)
        self._server.start()

    def wait_for_all(self) -> None:
        """Say that this process has finished, and serve the others until they have, or are gone."""
        end = time.monotonic() + self._patience
        while True:
            self.store.set_clock(FINISHED)
            try:
                self.store.wait_clocks(FINISHED, min(_AGAIN, max(end - time.monotonic(), 0.0)))
                return
            except DeadlineExceeded:  # one that has come back hears it when it can be reached
                if time.monotonic() >= end:
                    raise

    def close(self) -> None:
        """Close the stores, and end the threads."""
        self.store.close()
        self._stirred.set()
        if self._seeker is not None:
            self._seeker.join()
        if self._models is not None:
            self._models.close()
        if self._server is not None:
            self._server.join()

    def _try(self, rank: int, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except (ConnectionFailure, DeadlineExceeded):
            self.lost += 1
            self.losses[rank] += 1
            self._lose(rank)
            return None

    def _lose(self, rank: int) -> None:
        self._away[rank] = time.monotonic() + _AGAIN
        if self._seeker is None:
            # On a thread of its own, because a host that is gone does not even refuse.
            self._seeker = threading.Thread(
                target=self._seek, name="rdmatensor-members", daemon=True
            )
            self._seeker.start()
        self._stirred.set()

    def _seek(self) -> None:
        """Try to reach those that were lost, until close()."""
        pause, due = dict.fromkeys(self.others, _AGAIN), dict.fromkeys(self.others, 0.0)
        with suppress(Closed):
            while not self.store.closed:
                self._stirred.wait(_LOOK if self._away else None)
                self._stirred.clear()
                for rank, earliest in list(self._away.items()):
                    member, now = self.store.member(rank), time.monotonic()
                    if now < max(earliest, 0.0 if member.present else due[rank]):
                        continue
                    if self._reach(rank, member.address or self._run.addresses[rank]):
                        pause[rank] = _AGAIN
                    elif member.present:
                        self._away[rank] = now + _AGAIN
                    else:
                        due[rank] = now + pause[rank]
                        pause[rank] = min(2 * pause[rank], _RARELY)

    def _reach(self, rank: int, address: str) -> bool:
        try:
            self.store.connect(rank, address, _AGAIN)
        except RdmaError:  # a shortage here passes, too
            return False
        self._run.moved(rank, address)
        self._away.pop(rank, None)
        return True
