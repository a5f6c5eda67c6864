# SPDX-License-Identifier: Apache-2.0
"""All-reduce among processes of this machine: rdmatensor.Group, gloo and OpenMPI, in turns.

Every library has processes of its own, and only one library's run at a time: the others are blocked
on a socket. docs/benchmarks.md tells what is measured.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from rdmatensor.demo.machine import describe, summary
from rdmatensor.demo.timing import Distribution, duration

PACKAGES = ("rdmatensor", "numpy", "torch", "mpi4py")
MEMBER = Path(__file__).with_name("group_member.py")
PATIENCE = 120.0
LIBRARIES = ("rdmatensor", "gloo", "openmpi")


@dataclass(frozen=True)
class Size:
    """How often an all-reduce of `nbytes` is called: a sample is the mean of `calls` back to back."""

    nbytes: int
    samples: int
    calls: int
    wanted: float  # speed relative to OpenMPI

    @property
    def text(self) -> str:
        return f"{self.nbytes >> 20} MB" if self.nbytes >= 1 << 20 else f"{self.nbytes >> 10} KB"


SIZES = (
    Size(4 << 10, 10, 200, 1 / 1.5),
    Size(256 << 10, 10, 20, 1 / 1.5),
    Size(4 << 20, 5, 4, 1),
    Size(64 << 20, 3, 1, 1),
)


@dataclass(frozen=True)
class Column:
    """What is measured for each size; several may share the processes of one library."""

    title: str
    library: str
    case: str = ""
    in_place: bool = True


GLOO = Column("gloo", "gloo")
OPENMPI = Column("OpenMPI", "openmpi")
OPENMPI_APART = Column("OpenMPI, result apart", "openmpi", in_place=False)
# Ours, each with whom it is compared: gloo only works in place.
OURS = {
    Column("rdmatensor, registered", "rdmatensor", "registered"): (GLOO, OPENMPI),
    Column("rdmatensor, any array", "rdmatensor", "plain"): (GLOO, OPENMPI),
    Column("rdmatensor, registered, result apart", "rdmatensor", "registered", False): (
        GLOO,
        OPENMPI_APART,
    ),
}
COLUMNS = (*OURS, GLOO, OPENMPI, OPENMPI_APART)


class Members:
    """The processes of one library."""

    def __init__(self, library: str, size: int, folder: Path) -> None:
        address = str(folder / library)
        self._lines: list[Connection] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(address)
        self._listener.listen(size)
        self._listener.settimeout(PATIENCE)
        self._processes = [subprocess.Popen(each) for each in commands(library, address, size)]

    def meet(self, size: int) -> None:
        with self._listener:
            for _ in range(size):
                self._lines.append(Connection(self._listener.accept()[0].detach()))
        offers = dict(self._everybody())
        self._tell(offers[0])
        self._everybody()

    def measure(self, column: Column, size: Size) -> list[float]:
        """Seconds of a call for each sample: of the slowest member."""
        self._tell((column.case, size.nbytes, column.in_place, size.samples, size.calls))
        return [max(times) for times in zip(*self._everybody(), strict=True)]

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._tell(None)
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(PATIENCE / 4)
            process.kill()
            process.wait()

    def _tell(self, order: Any) -> None:
        for line in self._lines:
            line.send(order)

    def _everybody(self) -> list[Any]:
        """One answer of each."""
        return [receive(line) for line in self._lines]


def receive(line: Connection) -> Any:
    if not line.poll(PATIENCE):
        raise click.ClickException(f"a member did not answer for {PATIENCE:.0f} s")
    try:
        return line.recv()
    except EOFError:
        raise click.ClickException("a member ended; it says why above") from None


def commands(library: str, address: str, size: int) -> list[list[str]]:
    member = [sys.executable, str(MEMBER), library, address]
    if library != "openmpi":
        return [[*member, str(rank), str(size)] for rank in range(size)]
    # Not bound to cores, as the others are not. More members than cores have to be admitted, and
    # then give way while they wait (mpi_yield_when_idle), as rdmatensor's do.
    command = ["mpirun", "-n", str(size), "--bind-to", "none"]
    if size > len(os.sched_getaffinity(0)):
        command.append("--oversubscribe")
    if os.geteuid() == 0:
        command.append("--allow-run-as-root")
    return [[*command, *member, "0", str(size)]]


def missing(library: str) -> str:
    """How to install what `library` needs; "" if it is there."""
    module = {"gloo": "torch", "openmpi": "mpi4py"}.get(library)
    if module and not importlib.util.find_spec(module):
        return f"{library}: skipped; pip install {module}"
    if library == "openmpi" and not shutil.which("mpirun"):
        return "openmpi: skipped, there is no mpirun; apt install openmpi-bin"
    return ""


# ---- measurement -----------------------------------------------------------------------------------


@dataclass
class Cell:
    """Of one size and column: all samples, and the median of each turn."""

    samples: list[float] = field(default_factory=list)
    turns: list[float] = field(default_factory=list)

    def add(self, times: list[float]) -> None:
        self.samples += times
        self.turns.append(Distribution.of(times).median)

    @property
    def times(self) -> Distribution:
        return Distribution.of(self.samples)


Cells = dict[tuple[Size, Column], Cell]


def measure(members: dict[str, Members], sizes: list[Size], turns: int) -> Cells:
    """Each size: a turn is a block of calls of each column; the next begins with the next column."""
    columns = [column for column in COLUMNS if column.library in members]
    cells = {(size, column): Cell() for size in sizes for column in columns}
    for size in sizes:
        for turn in range(-1, turns):
            for step in range(len(columns)):
                column = columns[(turn + step) % len(columns)]
                times = members[column.library].measure(column, size)
                if turn >= 0:  # before that, memory was touched for the first time
                    cells[size, column].add(times)
    return cells


@contextlib.contextmanager
def started(libraries: list[str], size: int) -> Iterator[dict[str, Members]]:
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        members = {}
        for library in libraries:
            members[library] = Members(library, size, Path(folder))
            stack.callback(members[library].close)
            members[library].meet(size)
        yield members


# ---- report ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ratio:
    """How many times as long the rival takes: of the medians, and (p10, p90) of single turns."""

    of_medians: float
    p10: float
    p90: float
    wanted: float

    @classmethod
    def of(cls, ours: Cell, rival: Cell, wanted: float) -> Ratio:
        turns = Distribution.of([b / a for a, b in zip(ours.turns, rival.turns, strict=True)])
        return cls(rival.times.median / ours.times.median, turns.p10, turns.p90, wanted)

    @property
    def text(self) -> str:
        style = "green" if self.of_medians >= self.wanted else "red"
        return f"[{style}]{self.of_medians:.2f}[/] ({self.p10:.2f} .. {self.p90:.2f})"


def ratios(cells: Cells, size: Size, ours: Column) -> dict[Column, Ratio]:
    return {
        rival: Ratio.of(cells[size, ours], cells[size, rival], 1 if rival is GLOO else size.wanted)
        for rival in OURS.get(ours, ())
        if (size, rival) in cells
    }


def render(cells: Cells, members: int) -> Table:
    table = Table(title=f"all-reduce of float32, {members} processes", title_justify="left")
    for title in ("", "", "p10", "median", "p90", "gloo", "OpenMPI"):
        table.add_column(title, justify="right" if title else "left")
    for (size, column), cell in cells.items():
        times = cell.times
        row = [duration(seconds) for seconds in (times.p10, times.median, times.p90)]
        row += [ratio.text for ratio in ratios(cells, size, column).values()]
        table.add_row(size.text, column.title, *row, end_section=column is COLUMNS[-1])
    wanted = ", ".join(f"{size.wanted:.2f} at {size.text}" for size in SIZES)
    table.caption = (
        "Last two columns: how many times as long the rival takes, and p10 .. p90 of single turns.\n"
        f"Wanted: gloo 1; OpenMPI {wanted}."
    )
    table.caption_justify = "left"
    return table


def as_json(cells: Cells) -> list[dict[str, Any]]:
    return [
        {
            "bytes": size.nbytes,
            **asdict(column),
            "times": cell.times.as_json(),
            "turns": cell.turns,
            "ratios": {
                rival.title: asdict(ratio) for rival, ratio in ratios(cells, size, column).items()
            },
        }
        for (size, column), cell in cells.items()
    ]


@click.command()
@click.option("--members", default=2, show_default=True, help="Processes of each library.")
@click.option("--quick", is_flag=True, help="Fewer turns: about half a minute.")
@click.option(
    "--library",
    "libraries",
    multiple=True,
    type=click.Choice(LIBRARIES),
    help="Only these; may be given several times.",
)
@click.option("--size", "texts", multiple=True, type=click.Choice([s.text for s in SIZES]))
@click.option(
    "--json", "json_file", type=click.Path(path_type=Path, dir_okay=False), help="Write all."
)
def main(
    members: int,
    quick: bool,
    libraries: tuple[str, ...],
    texts: tuple[str, ...],
    json_file: Path | None,
) -> None:
    """All-reduce of rdmatensor.Group, gloo and OpenMPI between processes of this machine."""
    console = Console(width=None if sys.stdout.isatty() else 130)
    machine = describe(PACKAGES)
    console.print(summary(machine), highlight=False)
    wanted = libraries or LIBRARIES
    for library in wanted:
        if reason := missing(library):
            console.print(reason, highlight=False)
    sizes = [size for size in SIZES if not texts or size.text in texts]
    with started([each for each in wanted if not missing(each)], members) as groups:
        cells = measure(groups, sizes, 10 if quick else 50)
    console.print(render(cells, members))
    if json_file:
        fields = {"machine": machine, "members": members, "rows": as_json(cells)}
        json_file.write_text(json.dumps(fields, indent=1))


if __name__ == "__main__":
    main()
