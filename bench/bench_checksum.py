# SPDX-License-Identifier: Apache-2.0
"""What RDMATENSOR_CHECKSUM=crc32c costs: the checksum against a copy, and steps of TensorFlow without.

    python bench/bench_checksum.py [--quick] [--json checksum.json]

Two grpc+rdma clusters take turns. The transfer sends all that it has, the training step computes as well.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.table import Table

import rdmatensor
import tf_cases
from rdmatensor.bench import record, report
from rdmatensor.bench.turns import in_turns
from rdmatensor.demo.launch import Team
from rdmatensor.demo.settings import model_bytes
from rdmatensor.demo.timing import duration
from tf_cases import KB, MB, Case
from tf_measure import Cluster, Way, measure, ratio
from tf_report import Row
from tf_run import benchmark, json_option

SIZES = [4 * KB << 2 * i for i in range(8)]  # 4 KB to 64 MB
PAGE = 4096
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
RIVALS = {f"crc32c, {kind}": f"off, {kind}" for kind in ("dynamic", "planned")}
SUITE = "checksums"
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


def _bandwidth(function: Callable[[], object], nbytes: int) -> list[float]:
    """Bytes a second, of some megabytes: one sample."""
    count = max(1, TURN_BYTES // nbytes)
    begin_s = time.perf_counter()
    for _ in range(count):
        function()
    return [nbytes * count / (time.perf_counter() - begin_s)]


def _apart(source: np.ndarray) -> np.ndarray:
    """Memory of the same size, half a page from where `source` lies in its page: memcpy can be slow between
    places that are almost the same."""
    memory = np.zeros(source.nbytes + 2 * PAGE, dtype=np.uint8)
    start = (source.ctypes.data + PAGE // 2 - memory.ctypes.data) % PAGE
    return memory[start : start + source.nbytes]


def measure_bytes(factor: int) -> Iterator[record.Result]:
    """Of both at each size, in turns, on memory that was just used."""
    for nbytes in SIZES:
        source = np.random.default_rng(1).integers(0, 256, nbytes, dtype=np.uint8)
        ways = {
            "crc32c": partial(_bandwidth, partial(rdmatensor.crc32c, source), nbytes),
            "memcpy": partial(_bandwidth, partial(np.copyto, _apart(source), source), nbytes),
        }
        for way in ways.values():
            way()  # touches memory, fills caches
        for name, samples in in_turns(ways, TURNS * factor).items():
            rival = "memcpy" if name == "crc32c" else ""
            shape = (SUITE, "CRC32C of memory, from Python", name, record.BYTES_PER_SECOND)
            yield record.Result(*shape, samples.all, nbytes, samples.turns, rival=rival)


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
@json_option
def main(quick: bool, json_file: Path | None) -> None:
    """Print what checksums cost.

    Exits with 1 if a task fails, a value is wrong or a tensor took another way than it should.
    """
    factor = 1 if quick else tf_cases.FULL
    with benchmark("Checksums", 120, quick, json_file) as (console, run, logs):
        with console.status("measuring checksums"):
            run.results += measure_bytes(factor)
        console.print(report.table(SUITE, run.results))
        with console.status("measuring steps"):
            rows = list(measure_rows(logs, factor))
        console.print(table_of_steps(rows))
        run.results += [each for row in rows for each in row.records("checksums, steps", RIVALS)]
        run.faults = list(faults_of(rows))


if __name__ == "__main__":
    main()
