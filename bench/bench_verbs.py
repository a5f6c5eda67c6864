# SPDX-License-Identifier: Apache-2.0
"""The verbs transport against perftest: same device, same MTU, same depth, in turns.

Both ends run on this machine, through its first RDMA device. A machine without one measures in the
SoftRoCE lab, whose absolute numbers say little; the ratio says what the transport adds to verbs.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from rdmatensor.demo.machine import describe
from rdmatensor.demo.timing import Distribution

ROOT = Path(__file__).resolve().parent.parent
SIZES = (64 << 10, 1 << 20, 16 << 20)
BYTES_PER_RUN = 32 << 20  # of a bandwidth test
TURNS_PER_RUN = 1000  # of a latency test
PATIENCE = 120.0
# perftest polls without end; ours then may as well. One queue pair, as perftest has.
ENVIRONMENT = {
    "RDMATENSOR_TRANSPORTS": "verbs",
    "RDMATENSOR_QUEUE_PAIRS": "1",
    "RDMATENSOR_WAIT_SPIN_US": "100000",
}


class Failed(click.ClickException):
    """A program of a measurement did not do its work."""


@dataclass(frozen=True)
class Test:
    """One of perftest's programs and ours like it."""

    name: str
    perftest: str
    nbytes: int
    latency: bool
    wanted: str

    @property
    def iterations(self) -> int:
        return TURNS_PER_RUN if self.latency else max(8, min(500, BYTES_PER_RUN // self.nbytes))

    @property
    def depth(self) -> int:
        return 8 if self.nbytes > 1 << 20 else 128


def tests() -> Iterator[Test]:
    for kind in ("write", "read"):
        for nbytes in SIZES:
            yield Test(f"{kind}_bw", f"ib_{kind}_bw", nbytes, False, ">= 0.9")
        yield Test(f"{kind}_lat", f"ib_{kind}_lat", 8, True, ">= 0.67 (time <= 1.5x)")


@dataclass(frozen=True)
class Row:
    """Throughput in MB/s, or the median of a run in microseconds; one value per turn."""

    test: Test
    ours: Distribution
    perftest: Distribution

    @property
    def ratio(self) -> float:
        """How fast ours is relative to perftest: more is better."""
        ratio = self.ours.median / self.perftest.median
        return 1 / ratio if self.test.latency else ratio


# ---- programs --------------------------------------------------------------------------------------


def build(folder: Path) -> Path:
    """Our program, linked with the library that is built beside it."""
    tools = Path(sys.executable).parent
    settings = ["-DRDT_BUILD_BENCH=ON", "-DRDT_BUILD_TENSORFLOW=OFF", "-DRDT_BUILD_VERBS=ON"]
    ninja = tools / "ninja"
    generator = ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}"] if ninja.exists() else []
    cmake = str(tools / "cmake") if (tools / "cmake").exists() else "cmake"
    for command in (
        [cmake, "-S", str(ROOT), "-B", str(folder), *generator, *settings],
        [cmake, "--build", str(folder), "--target", "verbs_perf"],
    ):
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            raise Failed(f"cannot build verbs_perf: {done.stdout}{done.stderr}")
    return folder / "verbs_perf"


@contextlib.contextmanager
def server(program: Path) -> Iterator[str]:
    """Our serving end; yields its address."""
    with subprocess.Popen(
        [str(program), "serve"],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **ENVIRONMENT},
    ) as serving:
        assert serving.stdout is not None
        try:
            address = serving.stdout.readline().strip()
            if not address:
                raise Failed("the serving end of verbs_perf ended at once")
            yield address
        finally:
            serving.kill()


def measure_ours(program: Path, address: str, test: Test) -> float:
    command = [program, test.name, address, test.nbytes, test.iterations, test.depth]
    done = subprocess.run(
        [str(part) for part in command],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env={**os.environ, **ENVIRONMENT},
    )
    if done.returncode != 0:
        raise Failed(f"{test.name} failed: {done.stderr}")
    return float(done.stdout)


def perftest_command(test: Test, device: str, gid_index: int) -> list[str]:
    command = [test.perftest, "-d", device, "-x", str(gid_index), "-F"]
    command += ["-s", str(test.nbytes), "-n", str(test.iterations)]
    return command if test.latency else [*command, "-t", str(test.depth)]


def parse_perftest(output: str, test: Test) -> float:
    """The line of numbers: its median time in us, or its average rate, which is in MiB/s."""
    for line in output.splitlines():
        fields = line.split()
        if fields[:2] == [str(test.nbytes), str(test.iterations)]:
            return float(fields[4]) if test.latency else float(fields[3]) * (1 << 20) / 1e6
    raise Failed(f"{test.perftest} printed no result:\n{output}")


def measure_perftest(test: Test, device: str, gid_index: int) -> float:
    command = perftest_command(test, device, gid_index)
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as serving:
        try:
            end = time.monotonic() + PATIENCE
            while True:  # until the server listens
                done = subprocess.run(
                    [*command, "127.0.0.1"], capture_output=True, text=True, timeout=PATIENCE
                )
                if done.returncode == 0 or time.monotonic() > end:
                    break
                time.sleep(0.2)
            return parse_perftest(done.stdout, test)
        finally:
            serving.kill()


# ---- measurement -----------------------------------------------------------------------------------


def measure(program: Path, device: str, gid_index: int, turns: int) -> list[Row]:
    rows = []
    with server(program) as address:
        for test in tests():
            ours, theirs = [], []
            for _ in range(turns):
                theirs.append(measure_perftest(test, device, gid_index))
                ours.append(measure_ours(program, address, test))
            rows.append(Row(test, Distribution.of(ours), Distribution.of(theirs)))
            print(f"  {test.name} {test.nbytes}: {rows[-1].ratio:.2f}", file=sys.stderr, flush=True)
    return rows


def first_device() -> str | None:
    folder = Path("/sys/class/infiniband")
    return min((path.name for path in folder.iterdir()), default=None) if folder.exists() else None


def render(rows: list[Row], device: str) -> Table:
    table = Table(title=f"verbs against perftest on {device}", title_justify="left")
    for column in ("", "bytes", "ours p10", "median", "p90", "perftest", "speed", "wanted"):
        table.add_column(column, justify="left" if column in ("", "wanted") else "right")
    for row in rows:
        unit = "us" if row.test.latency else "MB/s"
        ours = (f"{value:.1f}" for value in (row.ours.p10, row.ours.median, row.ours.p90))
        table.add_row(
            f"{row.test.name} [{unit}]",
            str(row.test.nbytes),
            *ours,
            f"{row.perftest.median:.1f}",
            f"{row.ratio:.2f}",
            row.test.wanted,
        )
    return table


def in_lab(turns: int, output: Path | None) -> int:
    """Runs this very script where there is a device."""
    with tempfile.TemporaryDirectory() as folder:
        program = build(Path(folder) / "build")
        inside = [sys.executable, __file__, "--program", str(program), "--turns", str(turns)]
        if output is not None:
            inside += ["--json", f"{folder}/result.json"]
        lab = [sys.executable, "-m", "rdmatensor.softroce", "run", "--shared", folder, "--"]
        status = subprocess.run([*lab, *inside]).returncode
        if output is not None and status == 0:
            output.write_text(Path(folder, "result.json").read_text())
        return status


@click.command(help=__doc__)
@click.option("--turns", default=5, show_default=True, help="Runs of each program and test.")
@click.option("--gid-index", default=1, show_default=True, help="perftest's; ours chooses itself.")
@click.option("--program", type=click.Path(path_type=Path), help="verbs_perf, if it is built.")
@click.option("--json", "output", type=click.Path(path_type=Path), help="Write results here too.")
def main(turns: int, gid_index: int, program: Path | None, output: Path | None) -> None:
    device = first_device()
    if device is None:
        sys.exit(in_lab(turns, output))
    with tempfile.TemporaryDirectory() as folder:
        rows = measure(program or build(Path(folder)), device, gid_index, turns)
    Console(width=110).print(render(rows, device))
    if output is not None:
        result = {"machine": describe(("rdmatensor",)), "rows": [asdict(row) for row in rows]}
        output.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
