# SPDX-License-Identifier: Apache-2.0
"""Step times of TensorFlow over grpc+rdma against stock gRPC, on one machine, in one run.

Three clusters of two servers each are alive at once and take turns: stock gRPC, grpc+rdma without a plan
("dynamic") and with one ("static"). docs/benchmarks.md tells the method.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click
from rich.console import Console

import tf_cases
from rdmatensor.demo.launch import Team
from rdmatensor.demo.settings import model_bytes
from tf_measure import (
    DYNAMIC,
    GRPC,
    STATIC,
    Cluster,
    Unused,
    Way,
    measure,
    measure_unused,
    ratio,
)
from tf_report import Row, plan_table, step_table, unused_faults, unused_records, unused_table
from tf_run import benchmark, json_option

# The batch bounds tensors whose rows are unknown; all others are as without.
PLANNED = replace(STATIC, settings={"RDMATENSOR_BATCH_SIZE": str(tf_cases.MOST_ROWS)})
# By name, the one that the others are compared with last.
CANDIDATES = {way.name: way for way in (DYNAMIC, PLANNED, replace(GRPC, name="grpc-again"))}


def measure_rows(team: Team, ways: list[Way], names: list[str], factor: int) -> Iterator[Row]:
    """Measure the named cases, on one cluster for each way."""
    clusters = [Cluster(team, way) for way in ways]
    for cluster in clusters:
        cluster.wait()
    for case in tf_cases.TRANSFERS:
        if case.name in names:
            build: dict[str, Any] = {"command": "transfer", **asdict(case)}
            results = measure(team, clusters, build, case.steps * factor, case.block)
            yield Row(case.name, case.step_bytes, case.target, results, case.path)
    # Variables go to the worker, as many bytes of gradients come back.
    moved = 2 * model_bytes(tf_cases.TRAINING_HIDDEN)
    for training in tf_cases.TRAININGS:
        if training.name in names:
            build = {"command": "training", "batch": training.batch}
            results = measure(team, clusters, build, training.steps * factor, training.block)
            yield Row(training.name, moved, training.target, results)


def run(
    console: Console, logs: Path, ways: list[Way], names: list[str], factor: int
) -> tuple[list[Row], Unused | None]:
    """All wanted measurements. TaskFailed if a task fails: a wrong value makes it fail."""
    rows: list[Row] = []
    unused = None
    with ExitStack() as stack:
        status = stack.enter_context(console.status(f"starting {len(ways)} clusters"))
        if set(names) - {tf_cases.UNUSED_NAME}:
            with Team(logs) as team:
                for row in measure_rows(team, ways, names, factor):
                    rows.append(row)
                    speed, _ = ratio(row.results[0], row.results[-1])
                    status.update(f"measured {row.name}: {speed:.1f}x; going on")
        if tf_cases.UNUSED_NAME in names:
            status.update("a local model, with the plugin loaded but unused, and without")
            with Team(logs) as team:
                steps = tf_cases.UNUSED_STEPS * factor
                unused = measure_unused(team, tf_cases.UNUSED_BATCH, steps, tf_cases.UNUSED_BLOCK)
    return rows, unused


def judge(rows: list[Row], unused: Unused | None) -> list[str]:
    """What makes the numbers worthless, in words; a missed target does not."""
    return [fault for row in rows for fault in row.faults()] + (
        unused_faults(unused) if unused else []
    )


def report(console: Console, rows: list[Row], unused: Unused | None) -> None:
    """Print the tables."""
    if rows:
        console.print(step_table(rows))
        if any(result.way.planned for result in rows[0].results):
            console.print(plan_table(rows))
    if unused:
        console.print(unused_table(unused))


@click.command()
@click.option(
    "--quick", is_flag=True, help=f"A {tf_cases.FULL}th of the steps: about five minutes."
)
@click.option("--only", multiple=True, type=click.Choice(tf_cases.NAMES), help="May be repeated.")
@json_option
@click.option(
    "--cluster",
    "chosen",
    multiple=True,
    type=click.Choice(list(CANDIDATES)),
    default=list(CANDIDATES)[:2],
    show_default=True,
    help='Measured beside stock gRPC, may be repeated; "grpc-again" shows the noise of the machine.',
)
def main(
    quick: bool,
    only: tuple[str, ...],
    json_file: Path | None,
    chosen: tuple[str, ...],
) -> None:
    """Measure TensorFlow steps over grpc+rdma against stock gRPC, in turns, on this machine.

    Exits with 1 if a task fails, a value is wrong or a tensor took another way than it should; a missed
    target is shown but does not fail the run.
    """
    names = list(only or tf_cases.names(quick))
    ways = [GRPC, *(way for name, way in CANDIDATES.items() if name in chosen)]
    with benchmark("TensorFlow steps", 150, quick, json_file) as (console, whole, logs):
        rows, unused = run(console, logs, ways, names, 1 if quick else tf_cases.FULL)
        report(console, rows, unused)
        whole.faults = judge(rows, unused)
        whole.results = [each for row in rows for each in row.records("TensorFlow steps")]
        whole.results += unused_records(unused) if unused else []


if __name__ == "__main__":
    main()
