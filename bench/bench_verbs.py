# SPDX-License-Identifier: Apache-2.0
"""The verbs transport against perftest: same device, same MTU, same depth, in turns.

Both ends run on this machine, through its first RDMA device. A machine without one measures in the
SoftRoCE lab, whose absolute numbers say little; the ratio says what the transport adds to verbs.
"""

from __future__ import annotations

import json
import statistics
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

from programs import Failed, build_micro, first_line, run, started
from rdmatensor.demo.machine import describe
from rdmatensor.demo.timing import Distribution

SIZES = (64 << 10, 1 << 20, 16 << 20)
BYTES_PER_RUN = 32 << 20  # of a bandwidth test
TURNS_PER_RUN = 1000  # of a latency test
PATIENCE = 120.0
# perftest polls without end; ours then may as well. One queue pair, as perftest has.
ENVIRONMENT = {
    "RDMATENSOR_TRANSPORTS": "verbs",
    "RDMATENSOR_LOG_LEVEL": "error",
    "RDMATENSOR_QUEUE_PAIRS": "1",
    "RDMATENSOR_WAIT_SPIN_US": "100000",
}


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


def measure_ours(program: Path, address: str, test: Test) -> float:
    """The median of a latency, or the mean rate, as perftest tells them."""
    shape = (1, 1) if test.latency else (test.depth, test.iterations)
    samples = test.iterations if test.latency else 1
    command = [program, test.name, address, test.nbytes, samples, *shape]
    done = run(command, ENVIRONMENT, PATIENCE).checked()
    return statistics.median(float(line) for line in done.output.split())


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
    with started(command):
        end = time.monotonic() + PATIENCE
        done = run([*command, "127.0.0.1"], patience=PATIENCE)
        while done.status and time.monotonic() < end:  # until the server listens
            time.sleep(0.2)
            done = run([*command, "127.0.0.1"], patience=PATIENCE)
        return parse_perftest(done.checked().output, test)


# ---- measurement -----------------------------------------------------------------------------------


def measure(program: Path, device: str, gid_index: int, turns: int) -> list[Row]:
    rows = []
    with started([program, "serve", max(SIZES)], ENVIRONMENT) as serving:
        address = first_line(serving)
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
        program = build_micro(Path(folder) / "build")
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
@click.option("--program", type=click.Path(path_type=Path), help="micro, if it is built.")
@click.option("--json", "output", type=click.Path(path_type=Path), help="Write results here too.")
def main(turns: int, gid_index: int, program: Path | None, output: Path | None) -> None:
    device = first_device()
    if device is None:
        sys.exit(in_lab(turns, output))
    with tempfile.TemporaryDirectory() as folder:
        rows = measure(program or build_micro(Path(folder)), device, gid_index, turns)
    Console(width=110).print(render(rows, device))
    if output is not None:
        result = {"machine": describe(("rdmatensor",)), "rows": [asdict(row) for row in rows]}
        output.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
