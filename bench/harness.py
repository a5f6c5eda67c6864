# SPDX-License-Identifier: Apache-2.0
"""What the programs of benchmarks share: turns, the command line, the record and its report."""

from __future__ import annotations

import inspect
import itertools
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
from rich.console import Console

import record
import report
from rdmatensor._tools.processes import terminate_like_interrupt
from record import SECONDS, Distribution, Missing, Parameter, Result, Run

KB, MB, GB = 1 << 10, 1 << 20, 1 << 30
Way = Callable[[], list[float]]


@dataclass
class Samples:
    """The samples of one way, turn by turn."""

    blocks: list[list[float]] = field(default_factory=list)

    @property
    def all(self) -> list[float]:
        """The samples of all turns."""
        return list(itertools.chain(*self.blocks))

    @property
    def turns(self) -> list[float]:
        """The median of each turn."""
        return [statistics.median(block) for block in self.blocks]

    @property
    def spread(self) -> Distribution:
        """Median and percentiles of all samples."""
        return Distribution.of(self.all)


def rotated(names: Sequence[str], turns: int) -> Iterator[list[str]]:
    """The order of the ways in each turn: every turn begins with the next one."""
    for turn in range(turns):
        first = turn % len(names)
        yield [*names[first:], *names[:first]]


def in_turns(ways: Mapping[str, Way], turns: int) -> dict[str, Samples]:
    """Call each way once in each turn, so that whatever else the machine does affects all alike.

    A call returns its samples, at least one.
    """
    samples = {name: Samples() for name in ways}
    for names in rotated(list(ways), turns):
        for name in names:
            samples[name].blocks.append(ways[name]())
    return samples


@dataclass
class Bench:
    """One run of one program: what it was asked for, and the record that it fills in."""

    run: Run
    quick: bool = False
    only: str = ""
    rival_python: str = sys.executable

    def wanted(self, cases: Sequence[Any]) -> list[Any]:
        """The cases whose names contain the text of --only."""
        return [each for each in cases if self.only in getattr(each, "name", str(each))]

    def add(
        self,
        suite: str,
        case: str,
        way: str,
        samples: Sequence[float],
        unit: str = SECONDS,
        nbytes: int | None = None,
        rival: tuple[str, float | None] = ("", None),
        **parameters: Parameter,
    ) -> None:
        """Record one result. `rival` is the way that it is compared with, and the ratio that is wanted."""
        self.run.results.append(
            Result(*(suite, case, way, unit, record.thinned(samples), nbytes, parameters, *rival))
        )

    def compare(
        self,
        suite: str,
        case: str,
        ways: Mapping[str, Way],
        turns: int,
        *,
        rivals: Mapping[str, tuple[str, float | None]] = {},
        **more: Any,
    ) -> dict[str, Samples]:
        """Measure the ways in turns and record them; `more` is as in `add`.

        `rivals` tells with which other way each is compared, if that is among the ways.
        """
        found = in_turns(ways, turns)
        for way, samples in found.items():
            rival = rivals.get(way, ("", None))
            known = rival if rival[0] in ways else ("", None)
            self.add(suite, case, way, samples.all, rival=known, **more)
        return found

    def missing(self, name: str, why: str, remedy: str) -> None:
        """Record a rival that is not there."""
        lacks = Missing(name, why, remedy)
        if lacks not in self.run.missing:
            self.run.missing.append(lacks)

    def has(self, name: str, module: str, remedy: str = "", python: str = "") -> bool:
        """Whether `python`, or that of the rivals, can import the module; else record `name` as missing."""
        code = [python or self.rival_python, "-c", f"import {module}"]
        there = subprocess.run(code, capture_output=True).returncode == 0
        if not there:
            remedy = remedy or f"pip install {module}, here or in the Python of --rival-python"
            self.missing(name, f"there is no {module}", remedy)
        return there


def main(measure: Callable[..., None]) -> None:
    """Run a benchmark as a program: `measure(bench, ...)`, whose other parameters become options.

    Prints the machine first, and the tables after it. Exits with status 1 if there are faults.
    """

    def command(quick: bool, only: str, rival_python: str, json: Path | None, **own: Any) -> None:
        console = Console(width=None if sys.stdout.isatty() else 150)
        machine = record.Environment.here()
        console.print(machine.summary, highlight=False, markup=False)
        bench = Bench(Run(about, machine, quick), quick, only, rival_python)
        began = time.monotonic()
        with terminate_like_interrupt():
            measure(bench, **own)
        bench.run.finish(time.monotonic() - began)
        report.show(console, bench.run)
        if json:
            bench.run.write(json)
        sys.exit(1 if bench.run.faults else 0)

    about = (sys.modules[measure.__module__].__doc__ or "").strip()
    options = [
        click.Option(["--quick"], is_flag=True, help="Measure less."),
        click.Option(["--only"], default="", help="Measure only cases whose name has this text."),
        click.Option(
            ["--rival-python"],
            default=sys.executable,
            help="A Python that has the rivals: torch, jax, mpi4py, hivemind.",
        ),
        click.Option(["--json"], type=click.Path(path_type=Path), help="Write the record."),
    ]
    for name, each in list(inspect.signature(measure).parameters.items())[1:]:
        kind = type(each.default)
        word = "--" + name.strip("_").replace("_", "-")
        if kind is tuple:
            example = type(each.default[0]) if each.default else str
            options.append(
                click.Option([word, name], multiple=True, type=example, default=each.default)
            )
        else:
            options.append(
                click.Option([word, name], type=kind, default=each.default, is_flag=kind is bool)
            )
    click.Command(None, callback=command, params=list(options), help=about)()
