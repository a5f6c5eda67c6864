# SPDX-License-Identifier: Apache-2.0
"""What RDMATENSOR_PLACEMENT costs: memory that devices pin, and copies of what does not lie there.

    python bench/bench_placement.py [--quick] [--json placement.json]

Four grpc+rdma clusters take turns: PLACEMENT=arena and traced, each with a plan and without. The training
step computes much more than it sends, the transfer sends all that it has.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from rich.table import Table

import tf_cases
from rdmatensor.demo.launch import Team
from rdmatensor.demo.settings import model_bytes
from rdmatensor.demo.timing import duration, size
from tf_cases import MB, Case
from tf_measure import Cluster, Use, Way, measure
from tf_report import Row
from tf_run import benchmark, json_option

BATCH = 1024
STEPS, BLOCK = 10, 5
TRANSFER = Case("100 x 1 MB", 100, MB, steps=STEPS, block=BLOCK)
TRAINING = f"training step, batch {BATCH}"
WAYS = [
    Way(
        f"{placement}, {'planned' if planned else 'dynamic'}",
        planned=planned,
        settings={"RDMATENSOR_PLACEMENT": placement},
    )
    for planned in (False, True)
    for placement in ("arena", "traced")
]
RIVALS = {f"traced, {kind}": f"arena, {kind}" for kind in ("dynamic", "planned")}
BUILDS: dict[str, tuple[int, dict[str, Any]]] = {
    TRANSFER.name: (TRANSFER.step_bytes, {"command": "transfer", **asdict(TRANSFER)}),
    TRAINING: (
        2 * model_bytes(tf_cases.TRAINING_HIDDEN),
        {"command": "training", "batch": BATCH},
    ),
}


def measure_rows(logs: Path, factor: int) -> Iterator[Row]:
    """Each case on clusters of its own: their arenas have held nothing before."""
    for name, (step_bytes, build) in BUILDS.items():
        with Team(logs) as team:
            clusters = [Cluster(team, way) for way in WAYS]
            for cluster in clusters:
                cluster.wait()
            results = measure(team, clusters, build, STEPS * factor, BLOCK)
            yield Row(name, step_bytes, None, results)


def table(rows: list[Row]) -> Table:
    """A line for each cluster of each case."""
    shown = Table(
        title="Placement",
        caption="Both tasks together. Pinned: the arena's regions, and what of them was in use at most. "
        "In place: the share of bytes that receivers used where the sender had them. Copies: of what "
        "was to be lent but lay elsewhere; planned tensors are copied into their places instead.",
    )
    for header in ("step", "placement"):
        shown.add_column(header)
    for header in (
        "median",
        "pinned",
        "in use",
        "in place",
        "copies a step",
        "while warming up",
        "sites marked",
    ):
        shown.add_column(header, justify="right")
    for row in rows:
        for result in row.results:
            use, steps = result.timed, result.samples.steps
            marked, traced = (
                use.total("placement", f"{kind}_sites") for kind in ("marked", "traced")
            )
            last = result is row.results[-1]
            shown.add_row(
                "" if result is not row.results[0] else row.name,
                result.way.name,
                duration(result.samples.time.median),
                size(use.total("arena", "reserved_bytes")),
                size(use.total("arena", "peak_bytes")),
                f"{use.total('fetched', 'in_place', 'bytes') / (steps * row.step_bytes):.1%}",
                _copies(use, steps),
                _copies(result.warm_up, 1),
                f"{marked} of {traced}" if traced else "-",
                end_section=last,
            )
    return shown


def _copies(use: Use, steps: int) -> str:
    count, nbytes = use.paths.tensors["bounce"] / steps, use.paths.bytes["bounce"] / steps
    return f"{count:.3g} ({size(nbytes)})" if count else "0"


@click.command()
@click.option("--quick", is_flag=True, help=f"A {tf_cases.FULL}th of the steps.")
@json_option
def main(quick: bool, json_file: Path | None) -> None:
    """Print what both placements pin and copy.

    Exits with 1 if a task fails, a value is wrong or a tensor took another way than it should.
    """
    with benchmark("Placement", 150, quick, json_file) as (console, run, logs):
        with console.status("measuring placements"):
            rows = list(measure_rows(logs, 1 if quick else tf_cases.FULL))
        console.print(table(rows))
        run.results = [each for row in rows for each in row.records("placement", RIVALS)]
        run.faults = [fault for row in rows for fault in row.faults()]


if __name__ == "__main__":
    main()
