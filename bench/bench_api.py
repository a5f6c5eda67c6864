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
from harness import GB, KB, MB, Bench, main
from member import serve, timed
from team import Task, Team

SIZES = (8, 64, 512, 4 * KB, 32 * KB, 256 * KB, 2 * MB, 16 * MB, 128 * MB, GB)
QUICK_SIZES = (8, 4 * KB, 64 * KB, MB, 16 * MB)
ANSWERED_UP_TO = 64 * KB
SUITE, REGION = "micro, Python", "rdmatensor-bench"
OURS, COPY = "rdmatensor", "memcpy"
IDLE_S = 1.0
PATIENCE_S = 30.0


def peer(nbytes: int) -> None:
    """The passive end, which offers a region and answers notifications."""

    def answer() -> None:
        for note in device.notifications(3600.0):
            with contextlib.suppress(rdmatensor.RdmaError):  # it may have disconnected
                note.source.notify(immediate=note.immediate)

    with rdmatensor.Device(name="bench-peer") as device:
        device.allocate(nbytes, name=REGION).array[:] = 0
        threading.Thread(target=answer, daemon=True).start()
        serve({"address": lambda: device.address, "used": time.process_time})


class Probe:
    """The active end, which measures."""

    def __init__(self, bench: Bench, peer: Task, device: rdmatensor.Device) -> None:
        self._bench, self._peer, self._device = bench, peer, device
        self._remote = device.connect(peer.ask("address"))
        self._region = self._remote.region(REGION)

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
            copy = {COPY: lambda: np.copyto(there, own.array)} if nbytes > ANSWERED_UP_TO else {}
            self._times(name, nbytes, {OURS: call, **copy})
        if nbytes <= ANSWERED_UP_TO:

            def turn() -> None:
                self._region.write(own.array, notify=1)
                self._device.next_notification(PATIENCE_S)

            self._times("write+notify and answer", nbytes, {OURS: turn})
        own.close()

    def notify(self) -> None:
        """Notifications without data."""

        def turn() -> None:
            self._remote.notify(immediate=1)
            self._device.next_notification(PATIENCE_S)

        self._times("notify and answer", None, {OURS: turn})

    def idle(self) -> None:
        """The processor time of both ends while the connection is idle."""
        before = time.process_time(), self._peer.ask("used")
        time.sleep(IDLE_S)
        after = time.process_time(), self._peer.ask("used")
        for end, begin, used in zip(("here", "the peer"), before, after, strict=True):
            share = [(used - begin) / IDLE_S]
            self._bench.add(SUITE, f"idle, {end}", OURS, share, "of a core")

    def _times(self, name: str, nbytes: int | None, calls: Mapping[str, Any]) -> None:
        turns, turn_bytes = (3, 128 * MB) if self._bench.quick else (5, 512 * MB)
        count = max(3, min(2000, turn_bytes // (nbytes or 1)))
        for call in calls.values():
            timed(call, max(1, count // 10))  # maps memory and warms caches
        self._bench.compare(
            SUITE,
            f"{name} latency",
            {way: lambda call=call: timed(call, count) for way, call in calls.items()},
            turns,
            nbytes=nbytes,
        )


def measure(bench: Bench) -> None:
    sizes = QUICK_SIZES if bench.quick else SIZES
    with Team() as team, rdmatensor.Device(name="bench") as device:
        (task,) = team.start("peer", [sys.executable, __file__, max(sizes)])
        task.answer()
        probe = Probe(bench, task, device)
        probe.check()
        for nbytes in sizes:
            probe.size(nbytes)
        probe.notify()
        probe.idle()


if __name__ == "__main__":
    if "BENCH_ADDRESS" in os.environ:
        peer(int(sys.argv[1]))
    main(measure)
