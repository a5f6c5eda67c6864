# SPDX-License-Identifier: Apache-2.0
"""Planned tensors on shared memory, copied into their places or lent where they lie: which is faster?

    python bench/bench_copy_or_lend.py [--quick] [--json sizes.json]

Two grpc+rdma clusters take turns with the same step of 100 tensors of one size. On one of them
RDMATENSOR_PLAN_COPY_BYTES, the size up to which tensors are copied, is larger than all of them, on the other
zero. A receiver that takes one element of each tensor shows what sending costs, one that reads all of it
what a step sees.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import click
from rich.table import Table

import tf_cases
from rdmatensor.demo.launch import Team
from rdmatensor.demo.timing import Distribution, duration
from tf_cases import KB, Case
from tf_measure import Cluster, Way, measure, ratio
from tf_report import Row
from tf_run import benchmark, json_option

COUNT = 100
SIZES = (4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096)  # KB
CONSUMERS = ("slice", "read")
QUICK_STEPS, BLOCK = 50, 5


def way(name: str, copied_up_to: str) -> Way:
    """Without groups, which are always copied, and with tensors of all sizes in the arena, where alone they
    can be lent from."""
    settings = {"PLAN_COPY_BYTES": copied_up_to, "FUSE_BYTES": "0", "INLINE_BYTES": "0"}
    environment = {f"RDMATENSOR_{setting}": value for setting, value in settings.items()}
    return Way(name, planned=True, settings=environment)


WAYS = (way("copied", "1T"), way("lent", "0"))


def measure_rows(logs: Path, steps: int) -> Iterator[Row]:
    """All sizes and consumers, on both clusters."""
    with Team(logs) as team:
        clusters = [Cluster(team, each) for each in WAYS]
        for cluster in clusters:
            cluster.wait()
        for kilobytes in SIZES:
            for consumer in CONSUMERS:
                case = Case(
                    f"{kilobytes} KB, {consumer}",
                    COUNT,
                    kilobytes * KB,
                    steps,
                    BLOCK,
                    None,
                    consumer,
                )
                build = {"command": "transfer", **asdict(case)}
                results = measure(team, clusters, build, case.steps, case.block)
                yield Row(case.name, case.step_bytes, None, results)


def crossover(rows: list[Row], consumer: str) -> int | None:
    """The smallest size in bytes from which on lending was never slower; None if it always was."""
    found = None
    for row in reversed([row for row in rows if row.name.endswith(consumer)]):
        if ratio(*row.results)[0] < 1:
            break
        found = row.step_bytes // COUNT
    return found


def not_as_meant(row: Row) -> Iterator[str]:
    """Clusters that copied what they should lend, or lent what they should copy."""
    for result in row.results:
        lent = result.timed.total("fetched", "in_place", "tensors") / result.samples.steps
        if lent != (COUNT if result.way.name == "lent" else 0):
            yield f"{row.name}: cluster {result.way.name} lent {lent:.4g} tensors a step"


def table(rows: list[Row]) -> Table:
    """A line for each size and consumer."""
    shown = Table(title=f"A step of {COUNT} planned tensors")
    shown.add_column("bytes, consumer")
    for header in ("copied", "lent", "lending is faster (turns)"):
        shown.add_column(header, justify="right")
    for row in rows:
        median, turns = ratio(*row.results)
        shown.add_row(
            row.name,
            *(_time(result.samples.time) for result in row.results),
            f"{median:.2f}x ({turns.p10:.2f} .. {turns.p90:.2f})",
            end_section=row.name.endswith(CONSUMERS[-1]),
        )
    return shown


def _time(time: Distribution) -> str:
    return f"{duration(time.median)} ({duration(time.p10)} .. {duration(time.p90)})"


@click.command()
@click.option("--quick", is_flag=True, help=f"A {tf_cases.FULL}th of the steps.")
@json_option
def main(quick: bool, json_file: Path | None) -> None:
    """Print step times by size, and the sizes from which lending is faster.

    Exits with 1 if a task fails, a value is wrong or a tensor took another way than it should.
    """
    steps = QUICK_STEPS if quick else QUICK_STEPS * tf_cases.FULL
    rows: list[Row] = []
    with benchmark("Copied or lent", 120, quick, json_file) as (console, run, logs):
        with console.status("starting two clusters") as status:
            for row in measure_rows(logs, steps):
                rows.append(row)
                status.update(f"measured {row.name}")
        console.print(table(rows))
        for consumer in CONSUMERS:
            nbytes = crossover(rows, consumer)
            start = "no size" if nbytes is None else f"{nbytes // KB} KB"
            console.print(f"consumer {consumer}: lending is faster from {start}")
        run.results = [each for row in rows for each in row.records("copied or lent")]
        run.faults = [fault for row in rows for fault in (*row.faults(), *not_as_meant(row))]


if __name__ == "__main__":
    main()
