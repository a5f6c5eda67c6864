# SPDX-License-Identifier: Apache-2.0
"""Embeddings under ParameterServerStrategy: grpc+rdma against stock gRPC, on one machine, in one run.

    python bench/bench_embedding.py [--quick] [--json embedding.json]

Two clusters, each of a chief, a worker and a parameter server, take turns. The tables have 100,000 rows of
64 floats. A step looks up rows by id, in batches of different lengths, and sends their gradients back. So
tensors of unknown size travel in both directions.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import click

from rdmatensor.demo.launch import Child, Team, free_addresses
from tf_measure import GRPC, Cluster, Way, measure, ratio
from tf_report import Row, step_table
from tf_run import benchmark, json_option

_TASK = str(Path(__file__).with_name("tf_embedding_task.py"))
_JOBS = ("ps", "worker", "chief")
_ROW_BYTES = 64 * 4
# A batch may have some ids fewer.
_FEWER = 8
FULL = 4


@dataclass(frozen=True)
class Case:
    """`ids` ids are looked up in each of `tables` tables, in every step."""

    name: str
    tables: int
    ids: int
    target: float | None = None
    steps: int = 60
    block: int = 10

    @property
    def step_bytes(self) -> int:
        """At least: rows there, gradients back."""
        return 2 * self.tables * (self.ids - _FEWER) * _ROW_BYTES


CASES = (
    Case("1 table, 1024 ids", 1, 1024),
    Case("1 table, 16384 ids", 1, 16384, target=2),
    Case("8 tables, 2048 ids each", 8, 2048, target=2),
    Case("8 tables, 16384 ids each", 8, 16384, target=2, steps=20, block=5),
)
# With a plan, as by default; but no tensor of unknown size has a place from the start.
RDMA = Way("grpc+rdma", settings={"RDMATENSOR_PLAN": "on"})


class Trio(Cluster):
    """A parameter server, a worker and a chief, whose processes are started in this order."""

    def __init__(self, team: Team, way: Way) -> None:
        self.way = way
        self._team = team
        cluster = json.dumps({job: [free_addresses(1)[0]] for job in _JOBS})
        self.tasks = [
            team.start(f"{way.name}-{job}", [_TASK, cluster, job, way.protocol], way.environment)
            for job in _JOBS
        ]

    @property
    def client(self) -> Child:
        """The chief."""
        return self.tasks[-1]


@click.command()
@click.option("--quick", is_flag=True, help=f"A {FULL}th of the steps.")
@json_option
def main(quick: bool, json_file: Path | None) -> None:
    """Measure steps of training with embeddings over grpc+rdma against stock gRPC, in turns.

    Exits with 1 if a task fails, the losses differ or a tensor took another way than it should; a missed
    target is shown but does not fail the run.
    """
    rows = []
    with benchmark("Embeddings", 150, quick, json_file) as (console, run, logs):
        with console.status("measuring"), Team(logs) as team:
            clusters = [Trio(team, way) for way in (GRPC, RDMA)]
            for cluster in clusters:
                cluster.wait()
            for case in CASES:
                build = {"command": "train", "tables": case.tables, "ids": case.ids}
                steps = case.steps * (1 if quick else FULL)
                results = measure(team, clusters, build, steps, case.block)
                rows.append(Row(case.name, case.step_bytes, case.target, results))
        console.print(step_table(rows))
        for row in rows:
            if row.target is not None:
                speed, turns = ratio(row.results[0], row.results[-1])
                console.print(
                    f"{row.name}: {speed:.2f}x ({turns.p10:.2f} .. {turns.p90:.2f}), target {row.target:g}x"
                )
        run.results = [each for row in rows for each in row.records("embeddings")]
        run.faults = [fault for row in rows for fault in row.faults()]


if __name__ == "__main__":
    main()
