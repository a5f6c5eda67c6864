# SPDX-License-Identifier: Apache-2.0
"""The C interface on shared memory, against UCX and memcpy, in turns."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import rivals
from harness import GB, KB, MB, Bench, Way, main
from programs import build_micro, first_line, run, started
from record import BYTES_PER_SECOND, PER_SECOND, SECONDS, Process

SIZES = (8, 64, 512, 4 * KB, 32 * KB, 256 * KB, 2 * MB, 16 * MB, 128 * MB, GB)
QUICK_SIZES = (8, 4 * KB, 64 * KB, MB, 16 * MB)
LATENCY_UP_TO = 256 * KB
BANDWIDTH_FROM = 4 * KB
PEERS = (2, 8, 64)
BATCH = 64
DEPTH = 32
ENVIRONMENT = {"RDMATENSOR_TRANSPORTS": "shm", "RDMATENSOR_LOG_LEVEL": "error"}
OURS, UCX, COPY = "rdmatensor", "UCX", "memcpy"


@dataclass(frozen=True)
class Case:
    """What is measured at one size: our test, the unit of its results, and the corresponding test of UCX."""

    name: str
    test: str
    unit: str
    nbytes: int
    samples: int
    depth: int = 1
    each: int = 1
    ucx: str = ""
    ucx_value: str = ""
    copied: bool = False  # memcpy of the same size is the limit
    target: float | None = None  # speed relative to UCX

    @property
    def scale(self) -> float:
        """The factor from the numbers that micro prints to `unit`."""
        return 1e-6 if self.unit == SECONDS else 1e6


def count_for(nbytes: int, total: int, most: int) -> int:
    """The number of operations of `nbytes` that move `total` bytes: at least one, at most `most`."""
    return max(1, min(most, total // nbytes))


def latencies(sizes: tuple[int, ...]) -> Iterator[Case]:
    for nbytes in (size for size in sizes if size <= LATENCY_UP_TO):
        samples = count_for(nbytes, 64 * MB, 2000)
        single = Case("read latency", "read_lat", SECONDS, nbytes, samples)
        target = 1.0 if nbytes == 8 else None
        # One look at the clock takes as long as a write, so a sample covers many writes.
        each = 100 if nbytes <= 4 * KB else 10
        yield replace(
            single,
            name="write latency",
            test="write_lat",
            samples=max(20, 10 * samples // each),
            each=each,
            ucx="ucp_put_lat",
            ucx_value="seconds",
            target=target,
        )
        yield replace(single, name="write, until complete", test="write", samples=500, each=10)
        yield single
        yield replace(single, name="write+notify latency", test="notify_lat")


def bandwidths(sizes: tuple[int, ...]) -> Iterator[Case]:
    for nbytes in (size for size in sizes if size >= BANDWIDTH_FROM):
        ours = Case(
            *("write+notify bandwidth", "write_notify_bw", BYTES_PER_SECOND, nbytes),
            samples=5 if nbytes < GB else 2,
            depth=DEPTH,
            each=count_for(nbytes, 64 * MB, 2000),
        )
        both = replace(ours, ucx_value="bytes_per_second", copied=True, target=1.0)
        yield replace(both, name="write bandwidth", test="write_bw", ucx="ucp_put_bw")
        yield replace(both, name="read bandwidth", test="read_bw", ucx="ucp_get")
        if nbytes < GB:
            yield ours


def rates() -> Iterator[Case]:
    many = Case("notifications", "rate", PER_SECOND, 8, 5, depth=256, each=20_000)
    many = replace(many, ucx="ucp_am_bw", ucx_value="per_second")
    yield many
    name = f"writes, {BATCH} at once"
    yield replace(many, name=name, test="batch", depth=BATCH, each=500, ucx="ucp_put_bw")


def with_peers() -> Iterator[Case]:
    for count in PEERS:
        name = f"write, {count} peers in turn"
        write = Case(name, "peers", SECONDS, 8, samples=200, depth=count)
        yield write
        name = f"notify and answer, {count} peers in turn"
        yield replace(write, name=name, test="peers_notify")


def cases(quick: bool) -> list[Case]:
    sizes = QUICK_SIZES if quick else SIZES
    return [*latencies(sizes), *bandwidths(sizes), *rates(), *with_peers()]


class Micro:
    """Runs the cases with the program `micro`. `used` are the processes of the current case."""

    def __init__(self, bench: Bench, program: Path, has_ucx: bool) -> None:
        self.bench, self.program, self.has_ucx = bench, program, has_ucx
        self.used: dict[str, list[Process]] = {}

    def measure(self, case: Case, turns: int) -> None:
        if case.test.startswith("peers"):
            self._compare(case, {OURS: lambda: self._ours(case, "-")}, turns)
            return
        with started([self.program, "serve", case.nbytes], ENVIRONMENT) as server:
            address = first_line(server)
            ways: dict[str, Way] = {OURS: lambda: self._ours(case, address)}
            if case.ucx and self.has_ucx:
                ways[UCX] = lambda: self._ucx(case)
            if case.copied:
                ways[COPY] = lambda: self._copy(case)
            self._compare(case, ways, turns)

    def _compare(self, case: Case, ways: dict[str, Way], turns: int) -> None:
        self.used.clear()
        self.bench.compare(
            *("micro, C", case.name, ways, turns),
            rivals={OURS: (UCX, case.target)},
            processes_of=self.used,
            unit=case.unit,
            nbytes=case.nbytes,
            depth=case.depth,
            each=case.each,
        )

    def _note(self, way: str, used: Process) -> None:
        (before,) = self.used.get(way, [Process(used.name, 0.0, 0)])
        total = before.cpu_seconds + used.cpu_seconds
        self.used[way] = [Process(used.name, total, max(before.peak_bytes, used.peak_bytes))]

    def _micro(self, way: str, *words: object) -> list[float]:
        done = run([self.program, *words], ENVIRONMENT).checked()
        self._note(way, done.used)
        return [float(line) for line in done.output.split()]

    def _ours(self, case: Case, address: str) -> list[float]:
        shape = (case.nbytes, case.samples, case.depth, case.each)
        return [value * case.scale for value in self._micro(OURS, case.test, address, *shape)]

    def _copy(self, case: Case) -> list[float]:
        shape = (case.nbytes, case.samples, 1, case.each)
        return [case.nbytes / value * 1e6 for value in self._micro(COPY, "copy", "-", *shape)]

    def _ucx(self, case: Case) -> list[float]:
        count = case.samples * case.each * (case.depth if case.test == "batch" else 1)
        figures = rivals.ucx(case.ucx, case.nbytes, count, DEPTH)
        self._note(UCX, figures.processes[0])
        return [getattr(figures, case.ucx_value)]


def measure(bench: Bench, program: str = "", turns: int = 0) -> None:
    with tempfile.TemporaryDirectory() as folder:
        built = Path(program) if program else build_micro(Path(folder))
        micro = Micro(bench, built, rivals.has_ucx(bench))
        for case in bench.wanted(cases(bench.quick)):
            micro.measure(case, turns or (3 if bench.quick else 5))


if __name__ == "__main__":
    main(measure)
