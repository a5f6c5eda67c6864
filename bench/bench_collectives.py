# SPDX-License-Identifier: Apache-2.0
"""Collective operations through MultiWorkerMirroredStrategy: grpc+rdma against stock gRPC, on one
machine, in one run.

A cluster of each protocol is alive at once, and they take turns. docs/benchmarks.md tells the method.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from rdmatensor.bench import record
from rdmatensor.demo.cluster import SILENCE_S, environment
from rdmatensor.demo.launch import Team, free_addresses
from rdmatensor.demo.paths import STOCK
from rdmatensor.demo.timing import Distribution, duration
from tf_collective_cases import CASES, FULL, NAMES, Case
from tf_run import benchmark, json_option

_TASK = str(Path(__file__).with_name("tf_collective_task.py"))
_PROTOCOLS = (STOCK, "grpc+rdma")
_WARM_UP_BLOCKS = 2


class Cluster:
    """Workers with one protocol, which do everything together."""

    def __init__(self, team: Team, protocol: str, size: int) -> None:
        self.protocol = protocol
        self._team = team
        addresses = json.dumps(free_addresses(size))
        self.tasks = [
            team.start(
                f"{protocol}-of-{size}-worker{index}",
                [_TASK, addresses, str(index), protocol],
                environment(protocol),
            )
            for index in range(size)
        ]

    def wait(self) -> None:
        """Until all have the strategy."""
        for task in self.tasks:
            self._team.wait(task, "ready", SILENCE_S)

    def ask(self, command: str, **arguments: Any) -> list[Any]:
        """All workers at the same time."""
        for task in self.tasks:
            task.send(command, **arguments)
        return [self._team.wait(task, command, SILENCE_S) for task in self.tasks]


@dataclass
class Result:
    """One case on one cluster: the times of the first worker, block by block."""

    protocol: str
    blocks: list[list[float]] = field(default_factory=list)
    losses: list[list[str]] = field(default_factory=list)
    stats: list[Any] = field(default_factory=list)

    @property
    def time(self) -> Distribution:
        """Of all steps."""
        return Distribution.of([second for block in self.blocks for second in block])


@dataclass
class Row:
    """A case, on stock gRPC first."""

    case: Case
    size: int
    results: list[Result]

    @property
    def ratio(self) -> float:
        """How many times as long a step takes over stock gRPC."""
        return self.results[0].time.median / self.results[1].time.median

    @property
    def ratio_in_turns(self) -> Distribution:
        """The same for the blocks of each turn."""
        pairs = zip(self.results[0].blocks, self.results[1].blocks, strict=True)
        return Distribution.of([statistics.median(a) / statistics.median(b) for a, b in pairs])

    @property
    def target(self) -> float | None:
        """With two workers only."""
        return self.case.target if self.size == 2 else None

    @property
    def algorithms(self) -> str:
        """That the plugin chose: "flat 40, ring 3"."""
        counts: dict[str, int] = {}
        for group in self.results[1].stats[0]["collectives"]["groups"]:
            for name, use in group["algorithms"].items():
                counts[name] = counts.get(name, 0) + use["operations"]
        return ", ".join(f"{name} {count}" for name, count in counts.items())

    def faults(self) -> list[str]:
        """Signs that something did not go the way it should."""
        found = []
        for stats in self.results[1].stats:
            collectives = stats["collectives"]
            if collectives["by_tensorflow"] or collectives["served_by_grpc"]["bytes"]:
                found.append(f"left to gRPC: {collectives['by_tensorflow']}")
            if sum(kind["operations"] for kind in collectives["operations"].values()) == 0:
                found.append("no operation went by rdmatensor")
        if self.size == 2 and self.results[0].losses != self.results[1].losses:
            found.append("the losses differ")
        return [f"{self.case.name}: {fault}" for fault in found]

    def records(self) -> Iterator[record.Result]:
        """For the record."""
        for result in self.results:
            compared = result is self.results[1]
            yield record.Result(
                f"collectives of TensorFlow, {self.size} workers",
                self.case.name,
                result.protocol,
                record.SECONDS,
                [second for block in result.blocks for second in block],
                turns=[statistics.median(block) for block in result.blocks],
                rival=STOCK if compared else "",
                target=self.target if compared else None,
            )


def measure(clusters: list[Cluster], case: Case, factor: int) -> Row:
    """Build the case on each cluster, then blocks in turns."""
    results = [Result(cluster.protocol) for cluster in clusters]
    for cluster in clusters:
        if case.training:
            cluster.ask("training")
        else:
            cluster.ask("all_reduce", bytes_each=case.bytes, count=case.count)
        cluster.ask("block", steps=case.block * _WARM_UP_BLOCKS)
        if cluster.protocol != STOCK:
            cluster.ask("reset")
    both = list(zip(clusters, results, strict=True))
    for turn in range(-(-case.steps * factor // FULL // case.block)):
        for cluster, result in both if turn % 2 else reversed(both):
            answers = cluster.ask("block", steps=case.block)
            result.blocks.append(answers[0]["seconds"])
            result.losses.append(answers[0]["losses"])
    results[1].stats = clusters[1].ask("stats")
    return Row(case, len(clusters[0].tasks), results)


def table_of(rows: list[Row]) -> Table:
    """Times and ratios."""
    table = Table(title=f"Time of one step, {rows[0].size} workers")
    table.add_column("step")
    for header in ("grpc", "p10 .. p90", "grpc+rdma", "p10 .. p90", "faster", "target"):
        table.add_column(header, justify="right")
    table.add_column("algorithms")
    for row in rows:
        cells = []
        for result in row.results:
            time = result.time
            cells += [duration(time.median), f"{duration(time.p10)} .. {duration(time.p90)}"]
        turns = row.ratio_in_turns
        target = "-"
        if row.target is not None:
            met = row.ratio >= row.target
            target = (
                f"[green]{row.target:g}x met[/green]"
                if met
                else f"[red]{row.target:g}x missed[/red]"
            )
        faster = f"{row.ratio:.3g}x ({turns.p10:.3g} .. {turns.p90:.3g})"
        table.add_row(row.case.name, *cells, faster, target, row.algorithms)
    return table


def run(
    console: Console, logs: Path, sizes: tuple[int, ...], names: list[str], factor: int
) -> list[Row]:
    """All wanted measurements; prints a table for each number of workers."""
    rows: list[Row] = []
    for size in sizes:
        with console.status(f"{size} workers") as status, Team(logs) as team:
            clusters = [Cluster(team, protocol, size) for protocol in _PROTOCOLS]
            for cluster in clusters:
                cluster.wait()
            these = []
            for case in CASES:
                if case.name in names:
                    these.append(measure(clusters, case, factor))
                    status.update(f"{size} workers, {case.name}: {these[-1].ratio:.1f}x; going on")
        console.print(table_of(these))
        rows += these
    return rows


@click.command()
@click.option("--quick", is_flag=True, help=f"A {FULL}th of the steps.")
@click.option("--only", multiple=True, type=click.Choice(NAMES), help="May be repeated.")
@click.option("--workers", multiple=True, type=int, default=(2, 4), show_default=True)
@json_option
def main(
    quick: bool, only: tuple[str, ...], workers: tuple[int, ...], json_file: Path | None
) -> None:
    """Measure collective operations over grpc+rdma against stock gRPC, in turns, on this machine.

    Exits with 1 if a task fails, a value is wrong or an operation took another way than it should; a
    missed target is shown but does not fail the run.
    """
    with benchmark("Collectives of TensorFlow", 170, quick, json_file) as (console, whole, logs):
        rows = run(console, logs, workers, list(only or NAMES), 1 if quick else FULL)
        whole.results = [each for row in rows for each in row.records()]
        whole.faults = [fault for row in rows for fault in row.faults()]


if __name__ == "__main__":
    main()
