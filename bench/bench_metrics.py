# SPDX-License-Identifier: Apache-2.0
"""What reading a cluster's metrics costs its steps, and how long one reading takes.

    python bench/bench_metrics.py [--quick] [--period 1] [--json metrics.json]

Two grpc+rdma clusters take turns of some seconds; while one is measured, the metrics of both its tasks are
read every second. TensorFlow's profiler is off in both.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from rich.table import Table

import tf_cases
from rdmatensor._ops import watching
from rdmatensor.bench import record
from rdmatensor.demo.launch import Child, Event, Team
from rdmatensor.demo.settings import model_bytes
from rdmatensor.demo.timing import Distribution, duration
from tf_cases import KB, Case
from tf_measure import Cluster, Way, measure, ratio
from tf_report import Row
from tf_run import benchmark, json_option

SUITE = "metrics"
READ, OFF = Way("read", planned=True), Way("not read", planned=True)
TURNS = 3
# At most so much longer may a step take.
TARGET = 1.01


class ReadingTeam(Team):
    """Reads the metrics of some tasks while blocks of steps run on their client."""

    def __init__(self, logs: Path, period: float) -> None:
        super().__init__(logs)
        self.addresses: dict[Child, list[str]] = {}
        self.seconds: list[float] = []
        self._period = period

    def ask(self, child: Child, command: str, timeout: float = 60.0, **fields: Any) -> Event:
        """As Team's."""
        if command != "block" or child not in self.addresses:
            return super().ask(child, command, timeout, **fields)
        stop = threading.Event()
        reader = threading.Thread(target=self._read, args=(self.addresses[child], stop))
        reader.start()
        try:
            return super().ask(child, command, timeout, **fields)
        finally:
            stop.set()
            reader.join()

    def _read(self, addresses: list[str], stop: threading.Event) -> None:
        while True:
            for address in addresses:
                begin_s = time.perf_counter()
                watching.fetch(address)
                self.seconds.append(time.perf_counter() - begin_s)
            if stop.wait(self._period):
                return


# Blocks of some seconds, so that each has several readings.
SMALL = Case("100 x 4 KB", 100, 4 * KB, steps=2000, block=2000)
BATCH, TRAINING_BLOCK = 32, 120
BUILDS: dict[str, tuple[int, int, dict[str, Any]]] = {
    SMALL.name: (SMALL.step_bytes, SMALL.block, {"command": "transfer", **asdict(SMALL)}),
    f"training step, batch {BATCH}": (
        2 * model_bytes(tf_cases.TRAINING_HIDDEN),
        TRAINING_BLOCK,
        {"command": "training", "batch": BATCH},
    ),
}


def rows(logs: Path, factor: int, period: float) -> Iterator[tuple[Row, list[float]]]:
    """Each case on clusters of its own, and how long readings took."""
    for name, (step_bytes, block, build) in BUILDS.items():
        team = ReadingTeam(logs, period)
        with team:
            clusters = [Cluster(team, way) for way in (READ, OFF)]
            for cluster in clusters:
                cluster.wait()
            read = clusters[0]
            team.addresses[read.client] = [
                team.ask(task, "metrics")["address"] for task in read.tasks
            ]
            results = measure(team, clusters, build, block * TURNS * factor, block)
            yield Row(name, step_bytes, None, results), team.seconds


def table(found: list[tuple[Row, list[float]]]) -> Table:
    """A line for each case."""
    shown = Table(title="Steps of clusters whose metrics are read")
    shown.add_column("step")
    for header in (
        "read",
        "not read",
        "read / not read",
        "p10..p90 of turns",
        "readings",
        "one takes",
    ):
        shown.add_column(header, justify="right")
    for row, seconds in found:
        on, off = row.results
        whole, turns = ratio(on, off)
        shown.add_row(
            row.name,
            duration(on.samples.time.median),
            duration(off.samples.time.median),
            f"{whole:.4f}",
            f"{turns.p10:.4f}..{turns.p90:.4f}",
            str(len(seconds)),
            duration(Distribution.of(seconds).median),
        )
    return shown


@click.command()
@click.option("--quick", is_flag=True, help=f"A {tf_cases.FULL}th of the steps.")
@click.option(
    "--period", metavar="SECONDS", default=1.0, show_default=True, help="Between readings."
)
@json_option
def main(quick: bool, period: float, json_file: Path | None) -> None:
    """Print what reading metrics costs.

    Exits with 1 if a task fails, a value is wrong or a tensor took another way than it should.
    """
    with benchmark("Metrics", 120, quick, json_file) as (console, run, logs):
        with console.status("measuring"):
            found = list(rows(logs, 1 if quick else tf_cases.FULL, period))
        console.print(table(found))
        for row, seconds in found:
            run.faults += row.faults()
            run.results += row.records(SUITE, {READ.name: OFF.name})
            run.results.append(
                record.Result(SUITE, f"one reading, {row.name}", READ.name, record.SECONDS, seconds)
            )
            whole, turns = ratio(*row.results)
            if whole > TARGET and turns.p10 > 1:
                console.print(
                    f"missed: {row.name} takes {whole:.3f} times as long, at most {TARGET}"
                )


if __name__ == "__main__":
    main()
