# SPDX-License-Identifier: Apache-2.0
"""What RDMATENSOR_CHECKSUM=crc32c costs: the checksum against a copy, and steps of TensorFlow without.

    python bench/bench_checksum.py [--quick] [--json checksum.json]

Two grpc+rdma clusters take turns. The transfer sends all that it has, the training step computes as well.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.table import Table

import rdmatensor
import tf_cases
from rdmatensor.demo.launch import Team
from rdmatensor.demo.settings import model_bytes
from rdmatensor.demo.timing import Distribution, duration, size
from tf_cases import KB, MB, Case
from tf_measure import Cluster, Way, measure, ratio
from tf_report import Row
from tf_run import begin, logs_of_tasks, print_faults

SIZES = [4 * KB << 2 * i for i in range(8)]  # 4 KB to 64 MB
TURNS = 15
TURN_BYTES = 16 * MB
BATCH = 32
STEPS, BLOCK = 40, 5
WAYS = [
    Way(f"{name}, {'planned' if planned else 'dynamic'}", planned=planned, settings=settings)
    for planned in (False, True)
    for name, settings in (
        ("crc32c", {"RDMATENSOR_CHECKSUM": "crc32c"}),
        ("off", {"RDMATENSOR_CHECKSUM": "off"}),
    )
]
LARGE = Case("16 x 1 MB", 16, MB, steps=STEPS, block=BLOCK, consumer="read")
SMALL = Case("100 x 4 KB", 100, 4 * KB, steps=STEPS, block=BLOCK, consumer="read")
BUILDS: dict[str, tuple[int, dict[str, Any]]] = {
    **{
        case.name: (case.step_bytes, {"command": "transfer", **asdict(case)})
        for case in (LARGE, SMALL)
    },
    f"training step, batch {BATCH}": (
        2 * model_bytes(tf_cases.TRAINING_HIDDEN),
        {"command": "training", "batch": BATCH},
    ),
}


def _bandwidth(function: Callable[[], object], nbytes: int, count: int) -> float:
    begin_s = time.perf_counter()
    for _ in range(count):
        function()
    return nbytes * count / (time.perf_counter() - begin_s)


def measure_bytes(factor: int) -> dict[int, dict[str, Distribution]]:
    """Bytes a second of both at each size, in turns, on memory that was just used."""
    found = {}
    for nbytes in SIZES:
        source = np.random.default_rng(1).integers(0, 256, nbytes, dtype=np.uint8)
        target = np.zeros_like(source)
        work: dict[str, Callable[[], object]] = {
            "crc32c": lambda s=source: rdmatensor.crc32c(s),  # type: ignore[misc]
            "memcpy": lambda s=source, t=target: np.copyto(t, s),  # type: ignore[misc]
        }
        count = max(1, TURN_BYTES // nbytes)
        samples: dict[str, list[float]] = {name: [] for name in work}
        for turn in range(1 + TURNS * factor):
            for name, function in work.items():
                value = _bandwidth(function, nbytes, count)
                if turn:  # the first warms up
                    samples[name].append(value)
        found[nbytes] = {name: Distribution.of(values) for name, values in samples.items()}
    return found


def table_of_bytes(found: dict[int, dict[str, Distribution]]) -> Table:
    """A line for each size."""
    shown = Table(title="CRC32C and memcpy, on one processor, called from Python")
    for header in ("size", "crc32c", "p10", "memcpy", "p10", "crc32c / memcpy"):
        shown.add_column(header, justify="right")
    for nbytes, rates in found.items():
        crc, copy = rates["crc32c"], rates["memcpy"]
        columns = [
            f"{each / 1e9:.2f} GB/s" for each in (crc.median, crc.p10, copy.median, copy.p10)
        ]
        shown.add_row(size(nbytes), *columns, f"{crc.median / copy.median:.2f}")
    return shown


def measure_rows(logs: Path, factor: int) -> Iterator[Row]:
    """Each case on clusters of its own."""
    for name, (step_bytes, build) in BUILDS.items():
        with Team(logs) as team:
            clusters = [Cluster(team, way) for way in WAYS]
            for cluster in clusters:
                cluster.wait()
            yield Row(name, step_bytes, None, measure(team, clusters, build, STEPS * factor, BLOCK))


def table_of_steps(rows: list[Row]) -> Table:
    """A line for each kind of step with checksums, and what it is compared with."""
    shown = Table(title="Steps with and without checksums")
    for header in ("step", "plan"):
        shown.add_column(header)
    for header in ("crc32c", "off", "crc32c / off", "p10..p90 of turns", "verified a step"):
        shown.add_column(header, justify="right")
    for row in rows:
        for on, off in zip(row.results[::2], row.results[1::2], strict=True):
            whole, turns = ratio(on, off)
            shown.add_row(
                row.name,
                "planned" if on.way.planned else "dynamic",
                duration(on.samples.time.median),
                duration(off.samples.time.median),
                f"{whole:.3f}",
                f"{turns.p10:.3f}..{turns.p90:.3f}",
                f"{on.timed.total('checksums', 'verified') / on.samples.steps:.4g}",
            )
    return shown


def faults_of(rows: list[Row]) -> Iterator[str]:
    """Signs that what was measured is not what is meant."""
    for row in rows:
        yield from row.faults()
        for result in row.results:
            checks = result.way.settings["RDMATENSOR_CHECKSUM"] == "crc32c"
            verified = result.timed.total("checksums", "verified")
            if (verified > 0) != checks or result.timed.total("checksums", "corrupted"):
                yield f"{row.name}: {result.way.name} verified {verified} tensors"


@click.command()
@click.option("--quick", is_flag=True, help=f"A {tf_cases.FULL}th of the steps.")
@click.option(
    "--json", "json_file", type=click.Path(path_type=Path, dir_okay=False), help="Write all."
)
def main(quick: bool, json_file: Path | None) -> None:
    """Print what checksums cost.

    Exits with 1 if a task fails, a value is wrong or a tensor took another way than it should.
    """
    console, machine = begin(width=120)
    factor = 1 if quick else tf_cases.FULL
    with console.status("measuring checksums"):
        found = measure_bytes(factor)
    console.print(table_of_bytes(found))
    with logs_of_tasks(console) as logs, console.status("measuring steps"):
        rows = list(measure_rows(logs, factor))
    console.print(table_of_steps(rows))
    faults = list(faults_of(rows))
    print_faults(console, faults)
    if json_file:
        fields = {
            "machine": machine,
            "quick": quick,
            "bytes_per_second": {
                nbytes: {name: asdict(each) for name, each in rates.items()}
                for nbytes, rates in found.items()
            },
            "cases": {row.name: row.as_json() for row in rows},
        }
        json_file.write_text(json.dumps(fields, indent=1))
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
