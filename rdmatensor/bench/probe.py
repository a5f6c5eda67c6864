# SPDX-License-Identifier: Apache-2.0
"""The active end of the benchmark, which measures the Python API towards a peer, in turns with memcpy."""

from __future__ import annotations

import json
import mmap
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

import numpy as np

import rdmatensor

from .peer import END, REGION, USAGE, open_device
from .record import BYTES_PER_SECOND, SECONDS, Environment, Process, Result, Run, thinned
from .turns import in_turns

KB, MB, GB = 1 << 10, 1 << 20, 1 << 30
SIZES = (8, 64, 512, 4 * KB, 32 * KB, 256 * KB, 2 * MB, 16 * MB, 128 * MB, GB)
QUICK_SIZES = (8, 4 * KB, 64 * KB, MB, 16 * MB)
LATENCY_UP_TO = 64 * KB
SUITE = "micro, Python"
OURS, COPY = "rdmatensor", "memcpy"
BATCH = 64
ASLEEP_S = 0.002  # longer than either end polls, so that both must be woken
IDLE_S = 1.0
_ANSWER_S = 30.0


@dataclass(frozen=True)
class Effort:
    """How much to measure: the sizes, and the turns with their limits of samples and bytes."""

    sizes: Sequence[int]
    turns: int
    samples: int
    turn_bytes: int

    def count(self, nbytes: int) -> int:
        """The number of operations of `nbytes` bytes in a turn."""
        return max(3, min(self.samples, self.turn_bytes // nbytes))


QUICK = Effort(QUICK_SIZES, 3, 2000, 128 * MB)
FULL = Effort(SIZES, 5, 2000, 512 * MB)


def aligned(nbytes: int) -> Any:
    """Page-aligned memory, like that of regions, because alignment affects copies. Its pages are present."""
    array = np.frombuffer(mmap.mmap(-1, nbytes), dtype=np.uint8)
    array[:] = 1
    return array


def timed(call: Callable[[], object], count: int, pause_s: float = 0.0) -> list[float]:
    """The seconds of each of `count` calls, `pause_s` apart. They include about 0.05 us for the clock."""
    times = []
    for _ in range(count):
        if pause_s:
            time.sleep(pause_s)
        begin = perf_counter()
        call()
        times.append(perf_counter() - begin)
    return times


def as_rate(times: Result, case: str, nbytes: int, target: float | None = None) -> Result:
    """The same operations as bytes per second, with another target."""
    return replace(
        times,
        case=case,
        unit=BYTES_PER_SECOND,
        samples=[nbytes / seconds for seconds in times.samples],
        turns=[nbytes / seconds for seconds in times.turns],
        target=target,
    )


class Probe:
    """Measures towards one peer. Raises the errors of rdmatensor."""

    def __init__(self, device: rdmatensor.Device, address: str, effort: Effort) -> None:
        self.device = device
        self.remote = device.connect(address)
        self.region = self.remote.region(REGION)
        self.effort = effort

    @property
    def transport(self) -> str:
        """The transport of the connection."""
        return self.remote.transport

    def used(self) -> Process:
        """What the peer has used so far."""
        self.remote.notify(USAGE)
        cpu, peak = json.loads(self.device.next_notification(_ANSWER_S).payload)
        return Process("peer", cpu, peak)

    def check(self) -> str:
        """Write random bytes and read them back. Describes the difference, "" if there is none."""
        nbytes = min(MB, self.region.nbytes)
        data = np.random.default_rng(nbytes).integers(0, 256, nbytes, dtype=np.uint8)
        self.region.write(data).wait()
        wrong = int((self.region.read(0, nbytes) != data).sum())
        return f"{wrong} of {nbytes} bytes arrived wrong" if wrong else ""

    def results(self) -> Iterator[Result]:
        """The results of all cases."""
        for nbytes in self.effort.sizes:
            if nbytes <= self.region.nbytes:
                yield from self._of_size(nbytes)
        yield from self._notifications()
        yield from self._batches()
        yield from self._idle()

    def _of_size(self, nbytes: int) -> Iterator[Result]:
        # Other memory than a region's would be registered for each operation.
        own = self.device.allocate(nbytes)
        own.array[:] = 1
        there = aligned(nbytes)
        calls: dict[str, Callable[[], object]] = {
            "write": lambda: self.region.write(own.array).wait(),
            "read": lambda: self.region.read_into(own.array).wait(),
        }
        for name, call in calls.items():
            ways = {OURS: call, COPY: lambda: np.copyto(there, own.array)}
            if nbytes <= LATENCY_UP_TO:
                del ways[COPY]
            yield from self._times(name, nbytes, ways)
        if nbytes <= LATENCY_UP_TO:
            yield from self._answers("write+notify and answer", nbytes, own.array)
        own.close()

    def _times(
        self,
        name: str,
        nbytes: int | None,
        ways: Mapping[str, Callable[[], object]],
        pause_s: float = 0.0,
    ) -> Iterator[Result]:
        count = self.effort.count(nbytes or 1) // (10 if pause_s else 1)
        for call in ways.values():
            timed(call, max(1, count // 10))  # maps memory and warms caches
        before = self.used()
        turns = {way: lambda call=call: timed(call, count, pause_s) for way, call in ways.items()}
        for way, samples in in_turns(turns, self.effort.turns).items():
            times = Result(
                *(SUITE, f"{name} latency", way, SECONDS, thinned(samples.all), nbytes),
                turns=samples.turns,
                processes=[self.used().since(before)] if way == OURS else [],
            )
            yield times
            if nbytes and nbytes > LATENCY_UP_TO:
                yield as_rate(times, f"{name} bandwidth", nbytes)

    def _answers(self, name: str, nbytes: int, data: Any) -> Iterator[Result]:
        def turn() -> None:
            self.region.write(data, notify=1)
            self.device.next_notification(_ANSWER_S)

        yield from self._times(name, nbytes, {OURS: turn})

    def _notifications(self) -> Iterator[Result]:
        def turn() -> None:
            self.remote.notify(immediate=1)
            self.device.next_notification(_ANSWER_S)

        yield from self._times("notify and answer", None, {OURS: turn})
        yield from self._times("notify and answer from sleep", None, {OURS: turn}, ASLEEP_S)

    def _batches(self) -> Iterator[Result]:
        batch = self.remote.batch()
        data = np.zeros(8, dtype=np.uint8)
        for number in range(BATCH):
            batch.write(self.region, data, offset=8 * number)
        ways = {OURS: lambda: self.remote.post(batch).wait()}
        yield from self._times(f"{BATCH} writes in a batch", 8, ways)

    def _idle(self) -> Iterator[Result]:
        """The processor time of both ends while the connection is idle."""
        there, here = self.used(), time.process_time()
        time.sleep(IDLE_S)
        here = time.process_time() - here
        shares = {"here": here, "the peer": self.used().since(there).cpu_seconds}
        for end, seconds in shares.items():
            yield Result(SUITE, f"idle, {end}", OURS, "of a core", [seconds / IDLE_S])


def measure(device: rdmatensor.Device, peers: dict[str, str], quick: bool) -> Run:
    """Measure towards each peer, and end it. `peers` has the addresses by name."""
    effort = QUICK if quick else FULL
    run = Run("Python API", Environment.here(), quick)
    began = time.monotonic()
    for name, address in peers.items():
        probe = Probe(device, address, effort)
        about = device.transports[probe.transport].text
        run.environment = replace(run.environment, transport=probe.transport, device=about)
        if fault := probe.check():
            run.faults.append(f"{name}: {fault}")
        suite = SUITE if len(peers) == 1 else f"{SUITE}, to {name}"
        run.results += [replace(result, suite=suite) for result in probe.results()]
        probe.remote.notify(END).wait()
    run.finish(time.monotonic() - began)
    return run


def main() -> None:
    """Read an order as in peer.py, with "peers" ({name: address}) and "quick"; print the run as JSON."""
    order = json.loads(sys.stdin.readline())
    order["settings"].setdefault("BIND_PORT", "")  # nobody connects here, and a peer may have it
    with open_device(order, "bench") as device:
        print(measure(device, order["peers"], order["quick"]).as_json(), flush=True)


if __name__ == "__main__":
    main()
