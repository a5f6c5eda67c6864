# SPDX-License-Identifier: Apache-2.0
"""What the benchmarks of TensorFlow have in common around their measurements."""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import click
from rich.console import Console
from rich.markup import escape

from rdmatensor.bench import record
from rdmatensor.demo.launch import TaskFailed, terminate_like_interrupt

# Of every benchmark: the record is what `rdmatensor bench report` reads.
json_option: Callable[[Callable[..., Any]], Callable[..., Any]] = click.option(
    "--json",
    "json_file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the record, with every single time.",
)


class Benchmark(NamedTuple):
    """What a benchmark prints on, what it fills in, and a folder for logs of its tasks."""

    console: Console
    run: record.Run
    logs: Path


@contextmanager
def benchmark(title: str, width: int, quick: bool, json_file: Path | None) -> Iterator[Benchmark]:
    """Prints the machine on a console, `width` columns wide unless it is a terminal. After the block it
    prints the faults of the run in red, writes the record, and exits with 1 if there are any.

    If a task fails, the end of its log is printed, the logs are left, and the exit status is 1.
    """
    console = Console(width=None if sys.stdout.isatty() else width)
    run = record.Run(title, record.Environment.here(transport="shm"), quick)
    console.print(escape(run.environment.summary), highlight=False)
    began = time.monotonic()
    logs = Path(tempfile.mkdtemp(prefix="rdmatensor-bench-"))
    try:
        with terminate_like_interrupt():
            yield Benchmark(console, run, logs)
    except TaskFailed as failure:
        console.print(f"[red]{escape(str(failure))}; the end of {failure.log}:[/red]")
        console.print(escape(failure.tail()), highlight=False, soft_wrap=True)
        sys.exit(1)
    shutil.rmtree(logs)
    run.finish(time.monotonic() - began)
    for fault in run.faults:
        console.print(f"[red]{escape(fault)}[/red]")
    if json_file:
        run.write(json_file)
    sys.exit(1 if run.faults else 0)
