# SPDX-License-Identifier: Apache-2.0
"""Embeddings under ParameterServerStrategy: grpc+rdma against stock gRPC, on one machine.

Two clusters, each with a chief, a worker and a parameter server, take turns. The tables have 100,000 rows of
64 floats. A step looks up rows by id, in batches of different lengths, and sends their gradients back, so
tensors of unknown size travel in both directions.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click

from options import benchmark, json_option, quick_option
from team import Team
from tf_measure import GRPC, LOCAL, Trio, Way, measure
from tf_report import Row, step_table

WAYS = (GRPC, Way("grpc+rdma", planned=True), LOCAL)
_ROW_BYTES = 64 * 4
# The shortest batch has this many ids fewer.
_FEWER = 8
# A full run makes this many times the steps of a quick run.
FULL = 4


@dataclass(frozen=True)
class Case:
    """Every step looks up `ids` ids in each of `tables` tables."""

    name: str
    tables: int
    ids: int
    target: float | None = None
    steps: int = 60
    block: int = 10

    @property
    def step_bytes(self) -> int:
        """Bytes that a step moves at least: the rows, and their gradients."""
        return 2 * self.tables * (self.ids - _FEWER) * _ROW_BYTES


CASES = (
    Case("1 table, 1024 ids", 1, 1024),
    Case("1 table, 16384 ids", 1, 16384, target=2),
    Case("8 tables, 2048 ids each", 8, 2048, target=2),
    Case("8 tables, 16384 ids each", 8, 16384, target=2, steps=20, block=5),
)


@click.command()
@quick_option(f"Make 1/{FULL} of the steps.")
@json_option
def main(quick: bool, json_file: Path | None) -> None:
    """Measure steps of training with embeddings over grpc+rdma against stock gRPC, in turns.

    The exit status is 1 if a task fails, the losses differ, or a tensor takes another path than it should. A
    missed target is shown in red but does not fail the run.
    """
    rows = []
    with benchmark("Embeddings", 180, quick, json_file) as (console, run, logs):
        with console.status("measuring"), Team(logs) as team:
            clusters = [Trio(team, way, "tf_embedding_task") for way in WAYS]
            for cluster in clusters:
                cluster.wait()
            for case in CASES:
                build = {"command": "train", "tables": case.tables, "ids": case.ids}
                steps = case.steps * (1 if quick else FULL)
                results = measure(clusters, build, steps, case.block)
                rows.append(Row.of(case.name, case.step_bytes, case.target, results, path=""))
        console.print(step_table(rows))
        run.results = [each for row in rows for each in row.records("embeddings")]
        run.faults = [fault for row in rows for fault in row.faults()]


if __name__ == "__main__":
    main()
