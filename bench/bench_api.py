# SPDX-License-Identifier: Apache-2.0
"""The Python API between two processes of this machine, in turns with memcpy."""

from __future__ import annotations

import contextlib
import mmap
import os
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

import rdmatensor
from harness import GB, KB, MB, Bench, main, timed
from line import serve
from record import Process
from team import Task, Team

SIZES = (8, 64, 512, 4 * KB, 32 * KB, 256 * KB, 2 * MB, 16 * MB, 128 * MB, GB)
QUICK_SIZES = (8, 4 * KB, 64 * KB, MB, 16 * MB)
LATENCY_UP_TO = 64 * KB
SUITE, REGION = "micro, Python", "rdmatensor-bench"
OURS, COPY = "rdmatensor", "memcpy"
BATCH = 64
ASLEEP_S = 0.002  # longer than either end polls, so that both must be woken
IDLE_S = 1.0
PATIENCE_S = 30.0


def peer(nbytes: int) -> None:
    """The passive end, which offers a region and answers notifications."""

    def answer() -> None:
        for note in device.notifications(3600.0):
            with contextlib.suppress(rdmatensor.RdmaError):  # it may have disconnected
                note.source.notify(immediate=note.immediate)

    def used() -> tuple[float, int]:
        # The kernel counts processor time in steps of 10 ms, which is too coarse.
        return time.process_time(), Process.of(os.getpid(), "").peak_bytes

    with rdmatensor.Device(name="bench-peer") as device:
        device.allocate(nbytes, name=REGION).array[:] = 0
        threading.Thread(target=answer, daemon=True).start()
        serve({"address": lambda: device.address, "used": used})
        os._exit(0)


class Probe:
    """The active end, which measures."""

    def __init__(self, bench: Bench, peer: Task, device: rdmatensor.Device) -> None:
        self._bench, self._peer, self._device = bench, peer, device
        peer.send("address")
        self._remote = device.connect(peer.answer())
        self._region = self._remote.region(REGION)
        self._turns, self._turn_bytes = (3, 128 * MB) if bench.quick else (5, 512 * MB)

    def check(self) -> None:
        """Write random bytes and read them back."""
        data = np.random.default_rng(1).integers(0, 256, MB, dtype=np.uint8)
        self._region.write(data).wait()
        if wrong := int((self._region.read(0, MB) != data).sum()):
            self._bench.run.faults.append(f"{wrong} of {MB} bytes arrived wrong")

    def size(self, nbytes: int) -> None:
        """Writes and reads of one size."""
        # Other memory than a region's would be registered for each operation.
        own = self._device.allocate(nbytes)
        own.array[:] = 1
        # Page-aligned like that of regions, because alignment affects copies.
        there = np.frombuffer(mmap.mmap(-1, nbytes), dtype=np.uint8)
        there[:] = 1
        calls: dict[str, Any] = {
            "write": lambda: self._region.write(own.array).wait(),
            "read": lambda: self._region.read_into(own.array).wait(),
        }
        for name, call in calls.items():
            ways = {OURS: call}
            if nbytes > LATENCY_UP_TO:
                ways[COPY] = lambda: np.copyto(there, own.array)
            self._times(name, nbytes, ways)
        if nbytes <= LATENCY_UP_TO:

            def turn() -> None:
                self._region.write(own.array, notify=1)
                self._device.next_notification(PATIENCE_S)

            self._times("write+notify and answer", nbytes, {OURS: turn})
        own.close()

    def small(self) -> None:
        """Notifications, and batches."""

        def turn() -> None:
            self._remote.notify(immediate=1)
            self._device.next_notification(PATIENCE_S)

        self._times("notify and answer", None, {OURS: turn})
        self._times("notify and answer from sleep", None, {OURS: turn}, ASLEEP_S)
        batch, data = self._remote.batch(), np.zeros(8, dtype=np.uint8)
        for number in range(BATCH):
            batch.write(self._region, data, offset=8 * number)
        self._times(
            f"{BATCH} writes in a batch", 8, {OURS: lambda: self._remote.post(batch).wait()}
        )

    def idle(self) -> None:
        """The processor time of both ends while the connection is idle."""
        there, here = self._used(), time.process_time()
        time.sleep(IDLE_S)
        shares = {
            "here": time.process_time() - here,
            "the peer": self._used().since(there).cpu_seconds,
        }
        for end, seconds in shares.items():
            self._bench.add(SUITE, f"idle, {end}", OURS, [seconds / IDLE_S], "of a core")

    def _used(self) -> Process:
        self._peer.send("used")
        return Process("peer", *self._peer.answer())

    def _times(
        self, name: str, nbytes: int | None, calls: Mapping[str, Any], pause_s: float = 0.0
    ) -> None:
        count = max(3, min(2000, self._turn_bytes // (nbytes or 1))) // (10 if pause_s else 1)
        for call in calls.values():
            timed(call, max(1, count // 10))  # maps memory and warms caches
        found = self._bench.compare(
            SUITE,
            f"{name} latency",
            {way: lambda call=call: timed(call, count, pause_s) for way, call in calls.items()},
            self._turns,
            nbytes=nbytes,
        )
        for way, samples in found.items() if nbytes and nbytes > LATENCY_UP_TO else ():
            self._bench.add_rate(SUITE, f"{name} bandwidth", way, samples, nbytes)


def measure(bench: Bench) -> None:
    sizes = QUICK_SIZES if bench.quick else SIZES
    with Team() as team, rdmatensor.Device(name="bench") as device:
        (task,) = team.start("peer", [sys.executable, __file__, max(sizes)])
        task.answer()
        probe = Probe(bench, task, device)
        probe.check()
        for nbytes in sizes:
            probe.size(nbytes)
        probe.small()
        probe.idle()


if __name__ == "__main__":
    if "BENCH_ADDRESS" in os.environ:
        peer(int(sys.argv[1]))
    main(measure)
