# SPDX-License-Identifier: Apache-2.0
"""Collective operations of MultiWorkerMirroredStrategy, grpc+rdma against gRPC, and of rdmatensor.train.

A cluster of each protocol is alive at the same time, and they take turns. docs/benchmarks.md explains the
method.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from networks import LOOPBACK, Network, missing_veth, veth
from options import benchmark, json_option, only_option, quick_option
from paths import STOCK
from rdmatensor.bench.record import Result as Recorded
from team import Team
from tf_measure import GRPC, LOCAL, Cluster, Result, Way, measure
from tf_report import Row, step_table

KIB, MIB = 1 << 10, 1 << 20
# The training step has a square matrix of float32: 17 MB of gradients.
HIDDEN = 2048
# The same without a strategy: the operations of rdmatensor.train, which programs of Keras 3 use.
TRAIN = Way("rdmatensor.train")
PLANNED = Way("grpc+rdma", planned=True)
WAYS = (GRPC, TRAIN, PLANNED, LOCAL)
# A full run makes this many times the steps of a quick run.
FULL = 5


@dataclass(frozen=True)
class Case:
    """`count` all-reduces of `nbytes` bytes in one function; or, with a count of 0, a training step.

    A full run times `steps` steps, in turns of `block`. `target` is the wanted speedup with two workers.
    """

    name: str
    nbytes: int
    count: int
    target: float
    steps: int
    block: int

    @property
    def build(self) -> dict[str, Any]:
        """The command that builds the step."""
        if self.count:
            return {"command": "all_reduce", "bytes_each": self.nbytes, "count": self.count}
        return {"command": "training", "hidden": HIDDEN}


CASES = (
    Case("all-reduce 4 KiB", 4 * KIB, 1, 1.2, 800, 40),
    Case("all-reduce 256 KiB", 256 * KIB, 1, 1.5, 800, 40),
    Case("all-reduce 4 MiB", 4 * MIB, 1, 5, 300, 15),
    Case("all-reduce 64 MiB", 64 * MIB, 1, 18, 60, 3),
    Case("50 all-reduces of 4 KiB", 4 * KIB, 50, 3, 100, 5),
    Case("training, 17 MB of gradients", 4 * HIDDEN * HIDDEN, 0, 3, 100, 5),
)


class Workers(Cluster):
    """Workers that do everything together. The first one's answer counts."""

    def ask(self, command: str, *arguments: Any, **fields: Any) -> dict[str, Any]:
        """The first worker's answer to a command that goes to all of them."""
        return self.ask_all(command, *arguments, **fields)[0]


class CollectiveRow(Row):
    """A row whose tensors travel in collective operations, which the counters of paths do not include."""

    def faults(self) -> list[str]:
        """As in Row. With more than two workers the order of additions differs, and so may the losses."""
        faults = super().faults()
        two = len(self.results[-1].timed.tasks) == 2
        return [fault for fault in faults if two or not fault.endswith("the losses differ")]

    def faults_of(self, result: Result) -> Iterator[str]:
        """Operations that TensorFlow did itself, and bytes that went over gRPC."""
        for stats in result.timed.tasks if result.way.name != TRAIN.name else ():
            collectives = stats["collectives"]
            if collectives["by_tensorflow"] or collectives["served_by_grpc"]["bytes"]:
                yield f"left to gRPC: {collectives['by_tensorflow']}"
            if not sum(kind["operations"] for kind in collectives["operations"].values()):
                yield "rdmatensor did no operation"

    def route(self, result: Result) -> str:
        """The algorithms that the plugin chose: "flat 40, ring 3"."""
        if result.way.protocol == STOCK or result.way.name == TRAIN.name:
            return ""
        counts: Counter[str] = Counter()
        for group in result.timed.tasks[0]["collectives"]["groups"]:
            for name, use in group["algorithms"].items():
                counts[name] += use["operations"]
        return ", ".join(f"{name} {count}" for name, count in counts.items())


def run(
    console: Console,
    logs: Path,
    workers: int,
    names: tuple[str, ...],
    factor: int,
    network: Network,
) -> tuple[list[Recorded], list[str]]:
    """Measure the named cases, print a table, and return the results and the faults."""
    rows = []
    ways = WAYS if network is LOOPBACK else (GRPC, TRAIN.over_tcp(), PLANNED.over_tcp(), LOCAL)
    with console.status(f"{workers} workers") as status, Team(logs) as team:
        jobs = ("worker",) * workers
        clusters = [
            Workers(
                team,
                way,
                jobs,
                "tf_train_task" if way.name == TRAIN.name else "tf_collective_task",
                network,
            )
            for way in ways
        ]
        for cluster in clusters:
            cluster.wait()
        for case in CASES:
            if case.name in names:
                status.update(f"{workers} workers, {case.name}")
                results = measure(clusters, case.build, case.steps * factor // FULL, case.block)
                target = case.target if workers == 2 and network is LOOPBACK else None
                nbytes = case.nbytes * max(1, case.count)
                rows.append(CollectiveRow.of(case.name, nbytes, target, results))
    console.print(step_table(rows, f"Time of one step, {workers} workers"))
    suite = f"collectives of TensorFlow, {workers} workers"
    if network is not LOOPBACK:
        suite += f", tcp over {network.name}"
    recorded = [each for row in rows for each in row.records(suite)]
    return recorded, [fault for row in rows for fault in row.faults()]


@click.command()
@quick_option(f"Make 1/{FULL} of the steps.")
@only_option([case.name for case in CASES])
@click.option("--workers", multiple=True, type=int, default=(2, 4), show_default=True)
@click.option(
    "--veth",
    "with_veth",
    is_flag=True,
    help="Two workers, over tcp between two namespaces; as root.",
)
@click.option("--rate", default="", help="Limit them, in words of tc, such as 1gbit.")
@json_option
def main(
    quick: bool,
    only: tuple[str, ...],
    workers: tuple[int, ...],
    with_veth: bool,
    rate: str,
    json_file: Path | None,
) -> None:
    """Measure collective operations over grpc+rdma against stock gRPC, in turns, on this machine.

    The exit status is 1 if a task fails, a value is wrong, or an operation takes another path than it should.
    A missed target is shown in red but does not fail the run.
    """
    if rate and not with_veth:
        raise click.UsageError("--rate needs --veth")
    names = only or tuple(case.name for case in CASES)
    title = "Collectives of TensorFlow"
    with benchmark(title, 190, quick, json_file) as (console, whole, logs), ExitStack() as stack:
        network = LOOPBACK
        if with_veth:
            if missing := missing_veth():
                whole.missing.append(missing)
                return
            network, workers = stack.enter_context(veth(rate)), (2,)
        for count in workers:
            results, faults = run(console, logs, count, names, 1 if quick else FULL, network)
            whole.results += results
            whole.faults += faults


if __name__ == "__main__":
    main()
