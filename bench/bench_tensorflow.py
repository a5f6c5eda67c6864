# SPDX-License-Identifier: Apache-2.0
"""Step times of TensorFlow over grpc+rdma against stock gRPC, on one machine, in one run.

Two clusters of two servers each are alive at once and take turns. docs/benchmarks.md tells the method.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.markup import escape

import tf_cases
from rdmatensor.demo.launch import TaskFailed, Team, terminate_like_interrupt
from rdmatensor.demo.machine import describe, summary
from rdmatensor.demo.paths import STOCK
from rdmatensor.demo.settings import model_bytes
from tf_measure import Cluster, Unused, measure, measure_unused
from tf_report import Row, step_table, unused_faults, unused_json, unused_table

PACKAGES = ("rdmatensor", "tensorflow", "tensorflow-cpu", "numpy")


def measure_rows(team: Team, candidate: str, names: list[str], factor: int) -> Iterator[Row]:
    """Measure the named cases, on a cluster of stock gRPC and one of the candidate."""
    second = candidate if candidate != STOCK else f"{STOCK} again"
    clusters = [Cluster(team, STOCK, STOCK), Cluster(team, second, candidate)]
    for cluster in clusters:
        cluster.wait()
    for case in tf_cases.TRANSFERS:
        if case.name in names:
            build: dict[str, Any] = {"command": "transfer", "name": case.name}
            measured = measure(team, clusters, build, case.steps * factor, case.block)
            yield Row(case.name, case.step_bytes, case.target, measured)
    # Variables go to the worker, as many bytes of gradients come back.
    moved = 2 * model_bytes(tf_cases.TRAINING_HIDDEN)
    for training in tf_cases.TRAININGS:
        if training.name in names:
            build = {"command": "training", "batch": training.batch}
            measured = measure(team, clusters, build, training.steps * factor, training.block)
            yield Row(training.name, moved, training.target, measured)


def run(
    console: Console, logs: Path, candidate: str, names: list[str], factor: int
) -> tuple[list[Row], Unused | None]:
    """All wanted measurements. TaskFailed if a task fails: a wrong value makes it fail."""
    rows: list[Row] = []
    unused = None
    with ExitStack() as stack:
        status = stack.enter_context(console.status("starting two clusters"))
        if set(names) - {tf_cases.UNUSED_NAME}:
            with Team(logs) as team:
                for row in measure_rows(team, candidate, names, factor):
                    rows.append(row)
                    status.update(f"measured {row.name}: {row.measured.ratio:.1f}x; going on")
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


def report(
    console: Console, rows: list[Row], unused: Unused | None, faults: list[str]
) -> dict[str, Any]:
    """Print the tables; the same, with all times, as an object for JSON."""
    if rows:
        console.print(step_table(rows))
    if unused:
        console.print(unused_table(unused))
    for fault in faults:
        console.print(f"[red]{escape(fault)}[/red]")
    return {
        "cases": {row.name: row.as_json() for row in rows},
        "unused": unused_json(unused) if unused else None,
        "faults": faults,
    }


@click.command()
@click.option(
    "--quick", is_flag=True, help=f"A {tf_cases.FULL}th of the steps: under four minutes."
)
@click.option("--only", multiple=True, type=click.Choice(tf_cases.NAMES), help="May be repeated.")
@click.option(
    "--json", "json_file", type=click.Path(path_type=Path, dir_okay=False), help="Write all."
)
@click.option(
    "--candidate",
    default="grpc+rdma",
    show_default=True,
    help='Protocol measured against "grpc"; "grpc" itself shows the noise of the machine.',
)
def main(quick: bool, only: tuple[str, ...], json_file: Path | None, candidate: str) -> None:
    """Measure TensorFlow steps over grpc+rdma against stock gRPC, in turns, on this machine.

    Exits with 1 if a task fails, a value is wrong or a tensor took another way than it should; a missed
    target is shown but does not fail the run.
    """
    console = Console(width=None if sys.stdout.isatty() else 150)
    machine = describe(PACKAGES)
    console.print(summary(machine), highlight=False)
    logs = Path(tempfile.mkdtemp(prefix="rdmatensor-bench-"))
    names = list(only or tf_cases.NAMES)
    try:
        with terminate_like_interrupt():
            rows, unused = run(console, logs, candidate, names, 1 if quick else tf_cases.FULL)
    except TaskFailed as failure:
        console.print(f"[red]{escape(str(failure))}; the end of {failure.log}:[/red]")
        console.print(escape(failure.tail()), highlight=False, soft_wrap=True)
        sys.exit(1)
    faults = judge(rows, unused)
    results = report(console, rows, unused, faults)
    if json_file:
        fields = {"machine": machine, "quick": quick, "candidate": candidate, **results}
        json_file.write_text(json.dumps(fields, indent=1))
    shutil.rmtree(logs)
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
