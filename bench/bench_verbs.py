# SPDX-License-Identifier: Apache-2.0
"""The verbs transport against perftest, UCX and NIXL, with the same device and depth, in turns.

Both ends run on this machine and use its first RDMA device. A machine without one measures in the SoftRoCE
lab: its absolute numbers say little, but the ratios show what the transport adds to verbs.
"""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import bench_rivals
import rdmatensor
import rivals
from harness import Bench, Way, main
from programs import await_listener, build_micro, first_device, first_line, run, started
from record import BYTES_PER_SECOND, SECONDS, Run
from team import Failed, free_port

SIZES = (64 << 10, 1 << 20, 16 << 20)
BYTES_PER_RUN = 32 << 20  # of a bandwidth test
TURNS_PER_RUN = 1000  # of a latency test
PATIENCE = 120.0
OURS, PERFTEST, UCX = "rdmatensor", "perftest", "UCX"
# The tests of ucx_perftest for bandwidth and for latency. They use UCX's transports directly, because the
# layer above connects with datagrams, which time out on SoftRoCE.
UCX_TESTS = {"write": ("put_bw", "put_lat"), "read": ("get", "get")}
# As perftest does: poll for long, and use one queue pair.
ENVIRONMENT = {
    "RDMATENSOR_TRANSPORTS": "verbs",
    "RDMATENSOR_LOG_LEVEL": "error",
    "RDMATENSOR_QUEUE_PAIRS": "1",
    "RDMATENSOR_SPIN_US": "100000",
}


@dataclass(frozen=True)
class Case:
    """One of our tests, and the corresponding tests of perftest and UCX."""

    name: str
    test: str
    perftest: str
    ucx: str
    nbytes: int
    latency: bool = False
    target: float = 0.9  # speed relative to perftest

    @property
    def iterations(self) -> int:
        return TURNS_PER_RUN if self.latency else max(8, min(500, BYTES_PER_RUN // self.nbytes))

    @property
    def depth(self) -> int:
        if self.latency:
            return 1
        return 8 if self.nbytes > 1 << 20 else 128


def cases() -> Iterator[Case]:
    for kind, (bandwidth, latency) in UCX_TESTS.items():
        for nbytes in SIZES:
            yield Case(f"{kind} bandwidth", f"{kind}_bw", f"ib_{kind}_bw", bandwidth, nbytes)
        yield Case(f"{kind} latency", f"{kind}_lat", f"ib_{kind}_lat", latency, 8, True, 1 / 1.5)


def measure_ours(program: Path, address: str, case: Case) -> float:
    """The median latency, or the mean rate, like perftest."""
    shape = (1, 1) if case.latency else (case.depth, case.iterations)
    samples = case.iterations if case.latency else 1
    done = run([program, case.test, address, case.nbytes, samples, *shape], ENVIRONMENT, PATIENCE)
    value = statistics.median(float(line) for line in done.checked().output.split())
    return value * (1e-6 if case.latency else 1e6)


def perftest_command(case: Case, device: str, gid_index: int, port: int) -> list[str]:
    command = [case.perftest, "-d", device, "-x", str(gid_index), "-F", "-p", str(port)]
    command += ["-s", str(case.nbytes), "-n", str(case.iterations)]
    return command if case.latency else [*command, "-t", str(case.depth)]


def parse_perftest(output: str, case: Case) -> float:
    """The median time (perftest prints us) or the average rate (MiB/s) in the line of numbers."""
    for line in output.splitlines():
        fields = line.split()
        if fields[:2] == [str(case.nbytes), str(case.iterations)]:
            return float(fields[4]) / 1e6 if case.latency else float(fields[3]) * (1 << 20)
    raise Failed(f"{case.perftest} printed no result:\n{output}")


def measure_perftest(case: Case, device: str, gid_index: int) -> float:
    port = free_port()
    command = perftest_command(case, device, gid_index, port)
    with started(command) as serving:
        await_listener(serving, port)
        done = run([*command, "127.0.0.1"], patience=PATIENCE)
    return parse_perftest(done.checked().output, case)


def measure_ucx(case: Case, device: str, gid_index: int) -> float:
    """Use UCX's verbs transport, without the layer above it."""
    environment = rivals.over_verbs(device, gid_index)
    move = {"put_lat": "short", "get": "bcopy"}[case.ucx] if case.latency else "zcopy"
    words = ["-d", f"{device}:1", "-x", "rc_verbs", "-D", move]
    figures = rivals.ucx(case.ucx, case.nbytes, case.iterations, case.depth, environment, words)
    return figures.seconds if case.latency else figures.bytes_per_second


def works(bench: Bench, device: str, gid_index: int) -> bool:
    """Whether UCX moves bytes over the device; if not, it is recorded as missing."""
    if not rivals.has_ucx(bench):
        return False
    try:
        for case in cases():
            if case.latency:
                measure_ucx(case, device, gid_index)
    except Failed as failure:
        why = f"it does not work over {device}: {rivals.reason(failure.message)}"
        bench.missing(UCX, why, "`ucx_info -d` lists what it can use")
        return False
    return True


def on_device(bench: Bench, program: Path, device: str, gid_index: int, turns: int) -> None:
    """All cases, with the rivals that are installed and work."""
    with rdmatensor.Device() as own:
        text = own.transports["verbs"].text
    bench.run.environment = replace(bench.run.environment, device=text)
    perftest, ucx = bool(shutil.which("ib_write_bw")), works(bench, device, gid_index)
    if not perftest:
        bench.missing(PERFTEST, "there is no ib_write_bw", "apt install perftest")
    with started([program, "serve", max(SIZES)], ENVIRONMENT) as serving:
        address = first_line(serving)
        for case in cases():
            ways: dict[str, Way] = {OURS: lambda c=case: [measure_ours(program, address, c)]}
            if perftest:
                ways[PERFTEST] = lambda c=case: [measure_perftest(c, device, gid_index)]
            if ucx:
                ways[UCX] = lambda c=case: [measure_ucx(c, device, gid_index)]
            bench.compare(
                *(f"verbs on {device}", case.name, ways, turns),
                rivals={OURS: (PERFTEST, case.target)},
                unit=SECONDS if case.latency else BYTES_PER_SECOND,
                nbytes=case.nbytes,
                depth=case.depth,
                iterations=case.iterations,
            )


def in_lab(bench: Bench, program: Path, gid_index: int, turns: int, shared: Path) -> None:
    """Run this program in the SoftRoCE lab, which can write into the folder `shared`, and take its record."""
    result = shared / "result.json"
    lab = [sys.executable, "-m", "rdmatensor.softroce", "run", "--shared", str(shared), "--"]
    words = [__file__, "--program", program, "--turns", turns, "--gid-index", gid_index]
    inside = [sys.executable, *words, "--json", result, *(["--quick"] if bench.quick else [])]
    if subprocess.run([*lab, *map(str, inside)]).returncode:
        bench.run.faults.append("the run in the lab failed")
    if result.exists():
        found = Run.read(result)
        bench.run.results, bench.run.missing = found.results, found.missing
        bench.run.environment, faults = found.environment, found.faults
        bench.run.faults += faults


def measure(bench: Bench, program: str = "", gid_index: int = 1, turns: int = 5) -> None:
    device = first_device()
    with tempfile.TemporaryDirectory() as folder:
        built = Path(program) if program else build_micro(Path(folder) / "build")
        if device is None:
            in_lab(bench, built, gid_index, turns, Path(folder))
            return
        on_device(bench, built, device, gid_index, turns)
    bench_rivals.measure(replace(bench, quick=True), verbs=device, gid_index=gid_index)


if __name__ == "__main__":
    main(measure, transport="verbs")
