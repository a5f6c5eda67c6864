# SPDX-License-Identifier: Apache-2.0
"""The verbs transport against perftest, UCX and NIXL, with the same device and depth, in turns.

Both ends run on this machine and use its first RDMA device. A machine without one measures in the SoftRoCE
lab: its absolute numbers say little, but the ratios show what the transport adds to verbs.
"""

from __future__ import annotations

import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click

import rdmatensor
import rivals
from options import deliver, json_option, program_option
from programs import (
    Failed,
    await_listener,
    build_micro,
    first_device,
    first_line,
    free_port,
    in_lab,
    run,
    started,
)
from rdmatensor.bench import record, report
from rdmatensor.bench.turns import in_turns

SIZES = (64 << 10, 1 << 20, 16 << 20)
BYTES_PER_RUN = 32 << 20  # of a bandwidth test
TURNS_PER_RUN = 1000  # of a latency test
PATIENCE = 120.0
PYTHON_PATIENCE = 300.0
OURS, PERFTEST, UCX, NIXL = "rdmatensor", "perftest", "UCX", "NIXL"
# The tests of ucx_perftest for bandwidth and for latency. They use UCX's transports directly, because the
# layer above connects with datagrams, which time out on SoftRoCE.
UCX_TESTS = {"write": ("put_bw", "put_lat"), "read": ("get", "get")}
# As perftest does: poll for long, and use one queue pair.
ENVIRONMENT = {
    "RDMATENSOR_TRANSPORTS": "verbs",
    "RDMATENSOR_LOG_LEVEL": "error",
    "RDMATENSOR_QUEUE_PAIRS": "1",
    "RDMATENSOR_WAIT_SPIN_US": "100000",
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


# ---- programs --------------------------------------------------------------------------------------


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


# ---- measurement -----------------------------------------------------------------------------------


@dataclass
class Bench:
    """Measures on one device, with the program `micro` and the rivals."""

    program: Path
    device: str
    gid_index: int
    rivals: list[str]

    def measure(self, turns: int) -> Iterator[record.Result]:
        with started([self.program, "serve", max(SIZES)], ENVIRONMENT) as serving:
            address = first_line(serving)
            for case in cases():
                yield from self._results(case, address, turns)

    def _results(self, case: Case, address: str, turns: int) -> Iterator[record.Result]:
        ways = {
            OURS: lambda: [measure_ours(self.program, address, case)],
            PERFTEST: lambda: [measure_perftest(case, self.device, self.gid_index)],
            UCX: lambda: [measure_ucx(case, self.device, self.gid_index)],
        }
        present = {way: call for way, call in ways.items() if way == OURS or way in self.rivals}
        for way, samples in in_turns(present, turns).items():
            compared = way == OURS and PERFTEST in present
            yield record.Result(
                f"verbs on {self.device}",
                case.name,
                way,
                record.SECONDS if case.latency else record.BYTES_PER_SECOND,
                samples.all,
                case.nbytes,
                samples.turns,
                {"depth": case.depth, "iterations": case.iterations},
                rival=PERFTEST if compared else "",
                target=case.target if compared else None,
            )


def missing_perftest() -> record.Missing | None:
    if shutil.which("ib_write_bw"):
        return None
    return record.Missing(PERFTEST, "there is no ib_write_bw", "apt install perftest")


def missing_ucx(device: str, gid_index: int) -> record.Missing | None:
    """The rival as missing, unless UCX moves bytes over the device."""
    if absent := rivals.missing_ucx():
        return absent
    try:
        for case in cases():
            if case.latency:
                measure_ucx(case, device, gid_index)
    except Failed as failure:
        why = f"it does not work over {device}: {rivals.reason(failure.message)}"
        return record.Missing(UCX, why, "`ucx_info -d` lists what it can use")
    return None


def in_python(device: str, gid_index: int) -> record.Run | record.Missing:
    """Measure writes from Python, with rdmatensor and NIXL. NIXL may exit, so another process does it."""
    script = Path(__file__).with_name("bench_rivals.py")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "python.json")
        words = [sys.executable, script, "--verbs", device, "--gid-index", gid_index]
        done = run([*words, "--quick", "--json", file], patience=PYTHON_PATIENCE)
        if file.exists():
            return record.Run.read(file)
    ended = done.status != -signal.SIGKILL
    reason = (
        rivals.reason(done.output) if ended else f"it did not end within {PYTHON_PATIENCE:.0f} s"
    )
    why = f"it does not work over {device}: {reason}"
    return record.Missing(NIXL, why, f"see bench/bench_rivals.py --verbs {device}")


def measure(program: Path, device: str, gid_index: int, turns: int, python: bool) -> record.Run:
    """Measure all cases, with the rivals that are installed and work."""
    with rdmatensor.Device() as own:
        text = own.transports["verbs"].text
    whole = record.Run("Verbs", record.Environment.here(transport="verbs", device=text))
    absent = {PERFTEST: missing_perftest(), UCX: missing_ucx(device, gid_index)}
    whole.missing = [each for each in absent.values() if each]
    bench = Bench(program, device, gid_index, [name for name, each in absent.items() if not each])
    began = time.monotonic()
    for result in bench.measure(turns):
        whole.results.append(result)
        amount = report.value(result.spread.median, result.unit)
        print(f"  {result.case} {result.nbytes}, {result.way}: {amount}", file=sys.stderr)
    if python:
        found = in_python(device, gid_index)
        if isinstance(found, record.Missing):
            whole.missing.append(found)
        else:
            whole = record.merged(whole.title, [whole, found])
    whole.finish(time.monotonic() - began)
    return whole


@click.command(help=__doc__)
@click.option("--turns", default=5, show_default=True, help="Run each test so many times.")
@click.option("--gid-index", default=1, show_default=True, help="The GID index of the rivals.")
@program_option
@click.option("--python/--no-python", default=True, help="Measure writes from Python, too.")
@json_option
def main(
    turns: int, gid_index: int, program: Path | None, python: bool, json_file: Path | None
) -> None:
    device = first_device()
    with tempfile.TemporaryDirectory() as folder:
        program = program or build_micro(Path(folder) / "build")
        if device is None:
            words = [__file__, "--program", program, "--turns", turns, "--gid-index", gid_index]
            words.append("--python" if python else "--no-python")
            sys.exit(in_lab(words, json_file, Path(folder)))
        result = measure(program, device, gid_index, turns, python)
    deliver(result, json_file)


if __name__ == "__main__":
    main()
