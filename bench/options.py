# SPDX-License-Identifier: Apache-2.0
"""The options, the console and the record that the benchmarks share."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import click
from rich.console import Console
from rich.markup import escape

from rdmatensor.bench import record, report
from team import TaskFailed, terminate_like_interrupt

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

json_option: Decorator = click.option(
    "--json",
    "json_file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the record to this file, for `rdmatensor bench report`.",
)
program_option: Decorator = click.option(
    "--program", type=click.Path(path_type=Path), help="Use this build of micro.c."
)

rival_python_option: Decorator = click.option(
    "--rival-python",
    default=sys.executable,
    help="A Python that has the rivals: torch, jax, mpi4py.",
)


def has_module(python: str, module: str) -> bool:
    """Whether that Python can import the module, which may take seconds."""
    done = subprocess.run([python, "-c", f"import {module}"], capture_output=True)
    return done.returncode == 0


def quick_option(text: str) -> Decorator:
    """--quick, explained by `text`."""
    return click.option("--quick", is_flag=True, help=text)


def only_option(names: Sequence[str]) -> Decorator:
    """--only, which selects some of the cases."""
    choice = click.Choice(list(names))
    return click.option("--only", multiple=True, type=choice, help="Run this case; repeatable.")


def console(width: int = 130) -> Console:
    """A console that is `width` columns wide unless it is a terminal."""
    return Console(width=None if sys.stdout.isatty() else width)


def deliver(run: record.Run, json_file: Path | None) -> None:
    """Print the run, and write its record."""
    report.show(console(), run)
    if json_file:
        run.write(json_file)


class Benchmark(NamedTuple):
    """Where a benchmark prints, the run that it fills in, and a folder for the logs of its tasks."""

    console: Console
    run: record.Run
    logs: Path


@contextmanager
def benchmark(title: str, width: int, quick: bool, json_file: Path | None) -> Iterator[Benchmark]:
    """Print the machine before the block; print the faults and write the record after it.

    Exits with status 1 if the run has faults. If a task fails, prints the end of its log, leaves the logs in
    place, and exits with status 1.
    """
    shown = console(width)
    run = record.Run(title, record.Environment.here(transport="shm"), quick)
    shown.print(escape(run.environment.summary), highlight=False)
    began = time.monotonic()
    logs = Path(tempfile.mkdtemp(prefix="rdmatensor-bench-"))
    try:
        with terminate_like_interrupt():
            yield Benchmark(shown, run, logs)
    except TaskFailed as failure:
        shown.print(f"[red]{escape(str(failure))}; the end of {failure.log}:[/red]")
        shown.print(escape(failure.tail()), highlight=False, soft_wrap=True)
        sys.exit(1)
    shutil.rmtree(logs)
    run.finish(time.monotonic() - began)
    for fault in run.faults:
        shown.print(f"[red]{escape(fault)}[/red]")
    if json_file:
        run.write(json_file)
    sys.exit(1 if run.faults else 0)
