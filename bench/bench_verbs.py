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
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import bench_rivals
import rivals
from harness import Bench, main
from programs import await_listener, build, first_line, run, started
from record import BYTES_PER_SECOND, SECONDS, Run
from team import Failed, free_port

BANDWIDTH_SIZES, LATENCY_SIZE = (64 << 10, 1 << 20, 16 << 20), 8
OURS, PERFTEST, UCX = "rdmatensor", "perftest", "UCX"
# As perftest does: poll for long, and use one queue pair.
ENVIRONMENT = {
    "RDMATENSOR_TRANSPORTS": "verbs",
    "RDMATENSOR_LOG_LEVEL": "error",
    "RDMATENSOR_QUEUE_PAIRS": "1",
    "RDMATENSOR_SPIN_US": "100000",
}
# The tests of ucx_perftest, which use UCX's transports directly, because the layer above connects with
# datagrams, which time out on SoftRoCE; and how they move bytes.
UCX_TESTS = {
    "write_bw": ("put_bw", "zcopy"),
    "read_bw": ("get", "zcopy"),
    "write_lat": ("put_lat", "short"),
    "read_lat": ("get", "bcopy"),
}


class Case(NamedTuple):
    """One of our tests, whose name is perftest's without its beginning."""

    test: str
    nbytes: int

    @property
    def latency(self) -> bool:
        return self.test.endswith("_lat")

    @property
    def name(self) -> str:
        return self.test.replace("_lat", " latency").replace("_bw", " bandwidth")

    @property
    def iterations(self) -> int:
        return 1000 if self.latency else max(8, min(500, (32 << 20) // self.nbytes))

    @property
    def depth(self) -> int:
        if self.latency:
            return 1
        return 8 if self.nbytes > 1 << 20 else 128


CASES = [Case(f"{kind}_bw", nbytes) for kind in ("write", "read") for nbytes in BANDWIDTH_SIZES]
LATENCIES = [Case(f"{kind}_lat", LATENCY_SIZE) for kind in ("write", "read")]


def ours(micro: Path, address: str, case: Case) -> float:
    """The median latency, or the mean rate, like perftest."""
    shape = (case.iterations, 1, 1) if case.latency else (1, case.depth, case.iterations)
    lines = run([micro, case.test, address, case.nbytes, *shape], ENVIRONMENT).split()
    return statistics.median(map(float, lines)) * (1e-6 if case.latency else 1e6)


def perftest(case: Case, device: str, gid_index: int) -> float:
    port = free_port()
    command = [f"ib_{case.test}", "-d", device, "-x", str(gid_index), "-F", "-p", str(port)]
    command += ["-s", str(case.nbytes), "-n", str(case.iterations)]
    command += [] if case.latency else ["-t", str(case.depth)]
    with started(command) as serving:
        await_listener(serving, port)
        return parse_perftest(run([*command, "127.0.0.1"]), case)


def parse_perftest(output: str, case: Case) -> float:
    """The median time (perftest prints us) or the average rate (MiB/s) in the line of numbers."""
    for line in output.splitlines():
        fields = line.split()
        if fields[:2] == [str(case.nbytes), str(case.iterations)]:
            return float(fields[4]) / 1e6 if case.latency else float(fields[3]) * (1 << 20)
    raise Failed(f"ib_{case.test} printed no result:\n{output}")


def ucx(case: Case, device: str, gid_index: int) -> float:
    """Use UCX's verbs transport, without the layer above it."""
    test, move = UCX_TESTS[case.test]
    words = ["-d", f"{device}:1", "-x", "rc_verbs", "-D", move]
    over = rivals.over_verbs(device, gid_index)
    figures = rivals.ucx(test, case.nbytes, case.iterations, case.depth, over, words)
    return figures.seconds if case.latency else figures.bytes_per_second


def on_device(bench: Bench, micro: Path, device: str, gid_index: int, turns: int) -> None:
    """All cases, with the rivals that are installed and work."""
    others: dict[str, Callable[[Case, str, int], float]] = {}
    if shutil.which("ib_write_bw"):
        others[PERFTEST] = perftest
    else:
        bench.missing(PERFTEST, "there is no ib_write_bw", "apt install perftest")
    if rivals.has_ucx(bench):
        try:
            for case in LATENCIES:
                ucx(case, device, gid_index)
            others[UCX] = ucx
        except Failed as failure:
            why = f"it does not work over {device}: {rivals.reason(failure.message)}"
            bench.missing(UCX, why, "`ucx_info -d` lists what it can use")
    with started([micro, "serve", max(BANDWIDTH_SIZES)], ENVIRONMENT) as serving:
        address = first_line(serving)
        for case in (*CASES, *LATENCIES):
            ways = {OURS: lambda case=case: [ours(micro, address, case)]} | {
                name: lambda case=case, call=call: [call(case, device, gid_index)]
                for name, call in others.items()
            }
            bench.compare(
                *(f"verbs on {device}", case.name, ways, turns),
                rivals={OURS: (PERFTEST, 1 / 1.5 if case.latency else 0.9)},
                unit=SECONDS if case.latency else BYTES_PER_SECOND,
                nbytes=case.nbytes,
            )
    bench_rivals.measure(replace(bench, quick=True), verbs=device, gid_index=gid_index)


def in_lab(bench: Bench, micro: Path, gid_index: int, turns: int, shared: Path) -> None:
    """Run this program in the SoftRoCE lab, which can write into the folder `shared`, and take its record."""
    result = shared / "result.json"
    lab = [sys.executable, "-m", "rdmatensor.softroce", "run", "--shared", str(shared), "--"]
    words = [__file__, "--program", micro, "--turns", turns, "--gid-index", gid_index]
    inside = [sys.executable, *words, "--json", result, *(["--quick"] if bench.quick else [])]
    if subprocess.run([*lab, *map(str, inside)]).returncode:
        bench.run.faults.append("the run in the lab failed")
    if result.exists():
        found = Run.read(result)
        bench.run.results, bench.run.missing = found.results, found.missing
        bench.run.environment = found.environment
        bench.run.faults += found.faults


def measure(bench: Bench, program: str = "", gid_index: int = 1, turns: int = 5) -> None:
    folder = Path("/sys/class/infiniband")
    devices = sorted(path.name for path in folder.iterdir()) if folder.exists() else []
    with tempfile.TemporaryDirectory() as shared:
        micro = Path(program) if program else build(Path(shared, "build")) / "micro"
        if devices:
            on_device(bench, micro, devices[0], gid_index, turns)
        else:
            in_lab(bench, micro, gid_index, turns, Path(shared))


if __name__ == "__main__":
    main(measure)
