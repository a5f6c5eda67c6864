# SPDX-License-Identifier: Apache-2.0
"""The C interface on shared memory, against UCX and memcpy, in turns: see docs/benchmarks.md."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import click

import rivals
from options import console, deliver, json_option, program_option, quick_option
from programs import build_micro, first_line, run, started
from rdmatensor.bench import record
from rdmatensor.bench.turns import in_turns

KB, MB, GB = 1 << 10, 1 << 20, 1 << 30
SIZES = (8, 64, 512, 4 * KB, 32 * KB, 256 * KB, 2 * MB, 16 * MB, 128 * MB, GB)
QUICK_SIZES = (8, 4 * KB, 64 * KB, MB, 16 * MB)
LATENCY_UP_TO = 256 * KB
BANDWIDTH_FROM = 4 * KB
PEERS = (2, 8, 64)
BATCH = 64
DEPTH = 32
ENVIRONMENT = {"RDMATENSOR_TRANSPORTS": "shm", "RDMATENSOR_LOG_LEVEL": "error"}
OURS, UCX, COPY = "rdmatensor", "UCX", "memcpy"

Way = Callable[[], list[float]]


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
        return 1e-6 if self.unit == record.SECONDS else 1e6


def count_for(nbytes: int, total: int, most: int) -> int:
    """The number of operations of `nbytes` that move `total` bytes: at least one, at most `most`."""
    return max(1, min(most, total // nbytes))


def latencies(sizes: tuple[int, ...]) -> Iterator[Case]:
    for nbytes in (size for size in sizes if size <= LATENCY_UP_TO):
        samples = count_for(nbytes, 64 * MB, 2000)
        single = Case("read latency", "read_lat", record.SECONDS, nbytes, samples)
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
            *("write+notify bandwidth", "write_notify_bw", record.BYTES_PER_SECOND, nbytes),
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
    many = Case("notifications", "rate", record.PER_SECOND, 8, 5, depth=256, each=20_000)
    many = replace(many, ucx="ucp_am_bw", ucx_value="per_second")
    yield many
    name = f"writes, {BATCH} at once"
    yield replace(many, name=name, test="batch", depth=BATCH, each=500, ucx="ucp_put_bw")


def with_peers() -> Iterator[Case]:
    for count in PEERS:
        name = f"write, {count} peers in turn"
        write = Case(name, "peers", record.SECONDS, 8, samples=200, depth=count)
        yield write
        name = f"notify and answer, {count} peers in turn"
        yield replace(write, name=name, test="peers_notify")


def cases(quick: bool) -> list[Case]:
    sizes = QUICK_SIZES if quick else SIZES
    return [*latencies(sizes), *bandwidths(sizes), *rates(), *with_peers()]


class Bench:
    """Runs the cases with the program `micro`. `used` are the processes of the current case."""

    def __init__(self, program: Path, has_ucx: bool) -> None:
        self.program = program
        self.has_ucx = has_ucx
        self.used: dict[str, record.Process] = {}

    def measure(self, case: Case, turns: int) -> Iterator[record.Result]:
        if case.test.startswith("peers"):
            yield from self._results(case, {OURS: lambda: self._ours(case, "-")}, turns)
            return
        with started([self.program, "serve", case.nbytes], ENVIRONMENT) as server:
            address = first_line(server)
            ways: dict[str, Way] = {OURS: lambda: self._ours(case, address)}
            if case.ucx and self.has_ucx:
                ways[UCX] = lambda: self._ucx(case)
            if case.copied:
                ways[COPY] = lambda: self._copy(case)
            yield from self._results(case, ways, turns)

    def _results(self, case: Case, ways: dict[str, Way], turns: int) -> Iterator[record.Result]:
        self.used.clear()
        for way, samples in in_turns(ways, turns).items():
            rivalry = way == OURS and UCX in ways
            yield record.Result(
                "micro, C",
                case.name,
                way,
                case.unit,
                record.thinned(samples.all),
                case.nbytes,
                samples.turns,
                {"depth": case.depth, "each": case.each, "turns": turns},
                [self.used[way]],
                UCX if rivalry else "",
                case.target if rivalry else None,
            )

    def _note(self, way: str, used: record.Process) -> None:
        before = self.used.get(way, record.Process(used.name, 0.0, 0))
        total = before.cpu_seconds + used.cpu_seconds
        self.used[way] = record.Process(used.name, total, max(before.peak_bytes, used.peak_bytes))

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


def measure(program: Path, chosen: list[Case], turns: int) -> record.Run:
    missing = rivals.missing_ucx()
    versions = {} if missing else {"UCX": rivals.ucx_version()}
    environment = record.Environment.here(transport="shm", versions=versions)
    whole = record.Run("C interface, shared memory", environment)
    whole.missing += [missing] if missing else []
    bench = Bench(program, missing is None)
    began = time.monotonic()
    with console().status("measuring") as status:
        for case in chosen:
            status.update(f"{case.name}, {case.nbytes} bytes")
            whole.results += bench.measure(case, turns)
    whole.finish(time.monotonic() - began)
    return whole


@click.command(help=__doc__)
@quick_option("Measure fewer sizes in fewer turns: about a minute.")
@click.option("--turns", type=click.IntRange(1, 100), help="Measure each way so many times.")
@click.option("--only", help="Measure only cases whose name contains this text.")
@program_option
@json_option
def main(
    quick: bool, turns: int | None, only: str | None, program: Path | None, json_file: Path | None
) -> None:
    chosen = [case for case in cases(quick) if (only or "") in case.name]
    with tempfile.TemporaryDirectory() as folder:
        program = program or build_micro(Path(folder))
        result = measure(program, chosen, turns or (3 if quick else 5))
    result.quick = quick
    deliver(result, json_file)


if __name__ == "__main__":
    main()
