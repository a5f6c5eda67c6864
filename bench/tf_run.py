# SPDX-License-Identifier: Apache-2.0
"""What the benchmarks of TensorFlow have in common around their measurements."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from rdmatensor.demo.launch import TaskFailed, terminate_like_interrupt
from rdmatensor.demo.machine import describe, summary

PACKAGES = ("rdmatensor", "tensorflow", "tensorflow-cpu", "numpy")


def begin(width: int) -> tuple[Console, dict[str, object]]:
    """A console, `width` columns wide unless it is a terminal, and the machine, which is printed."""
    console = Console(width=None if sys.stdout.isatty() else width)
    machine = describe(PACKAGES)
    console.print(summary(machine), highlight=False)
    return console, machine


@contextmanager
def logs_of_tasks(console: Console) -> Iterator[Path]:
    """A folder for logs, removed at the end. If a task fails, the end of its log is printed and the program
    exits with status 1; the folder is left."""
    logs = Path(tempfile.mkdtemp(prefix="rdmatensor-bench-"))
    try:
        with terminate_like_interrupt():
            yield logs
    except TaskFailed as failure:
        console.print(f"[red]{escape(str(failure))}; the end of {failure.log}:[/red]")
        console.print(escape(failure.tail()), highlight=False, soft_wrap=True)
        sys.exit(1)
    shutil.rmtree(logs)


def print_faults(console: Console, faults: list[str]) -> None:
    """In red, a line for each."""
    for fault in faults:
        console.print(f"[red]{escape(fault)}[/red]")
