# SPDX-License-Identifier: Apache-2.0
"""All-reduce among processes of this machine: rdmatensor.Group, gloo and OpenMPI, in turns.

Every library has processes of its own. Those of one library run at a time, while the others are blocked on a
socket. docs/benchmarks.md explains what is measured.

With --tcp, rdmatensor uses TCP as gloo does, over loopback, and as root between two network namespaces.
OpenMPI is left out.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import click

from networks import Network, loopback_and_veth, missing_veth
from options import console, deliver, has_module, json_option, quick_option, rival_python_option
from rdmatensor.bench import record
from rdmatensor.bench.turns import in_turns
from rdmatensor.units import binary_size

MEMBER = Path(__file__).with_name("group_member.py")
PATIENCE = 300.0
OURS, GLOO, OPENMPI = "rdmatensor", "gloo", "OpenMPI"
LIBRARIES = (OURS, GLOO, OPENMPI)
TCP_TARGET = 1.5  # from 4 MiB on, against gloo


@dataclass(frozen=True)
class Size:
    """An all-reduce of `nbytes` bytes. A sample is the mean of `calls` calls back to back."""

    nbytes: int
    samples: int
    calls: int
    target: float  # speed relative to OpenMPI

    @property
    def text(self) -> str:
        return binary_size(self.nbytes)


SIZES = (
    Size(4 << 10, 10, 200, 1 / 1.5),
    Size(256 << 10, 10, 20, 1 / 1.5),
    Size(4 << 20, 5, 4, 1),
    Size(64 << 20, 3, 1, 1),
)


@dataclass(frozen=True)
class Way:
    """What is measured at each size. Several ways may share the processes of one library."""

    name: str
    library: str
    memory: str = ""


REGISTERED = Way("rdmatensor, registered", OURS, "registered")
ANY_ARRAY = Way("rdmatensor, any array", OURS, "plain")
MPI = Way(OPENMPI, OPENMPI)
# Gloo always works in place: the result replaces the input.
IN_PLACE = "in place"
CASES = {
    IN_PLACE: (REGISTERED, ANY_ARRAY, Way(GLOO, GLOO), MPI),
    "result apart": (REGISTERED, MPI),
}


class Unusable(click.ClickException):
    """The processes of a library failed."""


class Members:
    """The processes of one library, which the command lines `start`; they find this process at `address`."""

    def __init__(self, address: str, size: int, start: list[list[str]]) -> None:
        self._lines: list[Connection] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(address)
        self._listener.listen(size)
        self._listener.settimeout(0.5)
        self._processes = [subprocess.Popen(each) for each in start]

    def meet(self, size: int) -> None:
        """Wait until all have joined. Unusable if one does not."""
        with self._listener:
            for _ in range(size):
                self._lines.append(Connection(self._accept().detach()))
        offers = dict(self._everybody())
        self._tell(offers[0])
        self._everybody()

    def measure(
        self, memory: str, in_place: bool, size: Size
    ) -> tuple[list[float], list[record.Process]]:
        """The seconds of a call for each sample, at the slowest member, and what each member used."""
        self._tell((memory, size.nbytes, in_place, size.samples, size.calls))
        times, cpu_seconds, peaks = zip(*self._everybody(), strict=True)
        used = [
            record.Process(f"member {number}", *each)
            for number, each in enumerate(zip(cpu_seconds, peaks, strict=True))
        ]
        return [max(each) for each in zip(*times, strict=True)], used

    def close(self) -> None:
        for line in self._lines:
            with contextlib.suppress(OSError):
                line.send(None)
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(PATIENCE / 4)
            process.kill()
            process.wait()

    def _accept(self) -> socket.socket:
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end and all(each.poll() is None for each in self._processes):
            with contextlib.suppress(TimeoutError):
                return self._listener.accept()[0]
        raise Unusable("a member ended or did not connect; see its output above")

    def _tell(self, order: Any) -> None:
        for line in self._lines:
            line.send(order)

    def _everybody(self) -> list[Any]:
        """An answer from each member."""
        return [receive(line) for line in self._lines]


def receive(line: Connection) -> Any:
    if not line.poll(PATIENCE):
        raise Unusable(f"a member did not answer for {PATIENCE:.0f} s")
    try:
        return line.recv()
    except EOFError:
        raise Unusable("a member ended; see its output above") from None


def commands(
    library: str, address: str, size: int, rival_python: str, network: Network | None = None
) -> list[list[str]]:
    """The command lines of the members. With a network, every second one is at its other end."""
    python = sys.executable if library == OURS else rival_python
    member = [python, str(MEMBER), library, address]
    if library != OPENMPI:
        starts = [at_end_of(network, rank % 2 == 1) if network else [] for rank in range(size)]
        return [[*start, *member, str(rank), str(size)] for rank, start in enumerate(starts)]
    # Members are not bound to cores, like those of the others. With more members than cores, OpenMPI needs
    # --oversubscribe, and its members then yield while they wait, as those of rdmatensor do.
    command = ["mpirun", "-n", str(size), "--bind-to", "none"]
    if size > len(os.sched_getaffinity(0)):
        command.append("--oversubscribe")
    if os.geteuid() == 0:
        command.append("--allow-run-as-root")
    return [[*command, *member, "0", str(size)]]


def at_end_of(network: Network, far: bool) -> list[str]:
    """The words before a command that make it use TCP at one end of the network."""
    settings = {"GLOO_SOCKET_IFNAME": network.interface(far), **network.over_tcp(far)}
    prefix = network.prefix if far else ()
    return [*prefix, "env", *(f"{name}={value}" for name, value in settings.items())]


def missing(library: str, rival_python: str) -> record.Missing | None:
    """The library as missing, unless it is installed."""
    module = {GLOO: "torch", OPENMPI: "mpi4py"}.get(library)
    if module and not has_module(rival_python, module):
        remedy = f"pip install {module}, here or in the Python of --rival-python"
        return record.Missing(library, f"there is no {module}", remedy)
    if library == OPENMPI and not shutil.which("mpirun"):
        return record.Missing(library, "there is no mpirun", "apt install openmpi-bin")
    return None


# ---- measurement -----------------------------------------------------------------------------------


class Bench:
    """Measures with `count` members of each library in `members`, over shared memory or over `network`."""

    def __init__(
        self, members: dict[str, Members], count: int, turns: int, network: Network | None
    ) -> None:
        self._members = members
        self._count = count
        self._turns = turns
        self._network = network
        self._used: dict[str, list[record.Process]] = {}

    def results(self, case: str, size: Size) -> Iterator[record.Result]:
        """Measure one size in all ways, in turns."""
        ways = {way.name: way for way in CASES[case] if way.library in self._members}
        calls: dict[str, Callable[[], list[float]]] = {
            name: lambda way=way: self._turn(way, case, size)  # type: ignore[misc]
            for name, way in ways.items()
        }
        for call in calls.values():
            call()  # touches memory for the first time
        self._used.clear()
        for name, samples in in_turns(calls, self._turns).items():
            rival = self._rival(ways[name], ways)
            over = f", tcp over {self._network.name}" if self._network else ""
            yield record.Result(
                f"all-reduce of float32, {self._count} processes{over}",
                case,
                name,
                record.SECONDS,
                record.thinned(samples.all),
                size.nbytes,
                samples.turns,
                {"members": self._count, "calls": size.calls, "turns": self._turns},
                self._used[name],
                rival,
                self._target(rival, size),
            )

    def _target(self, rival: str, size: Size) -> float | None:
        wanted = TCP_TARGET if self._network and size.nbytes >= 4 << 20 else 1.0
        return {OPENMPI: size.target, GLOO: wanted}.get(rival)

    def _rival(self, way: Way, ways: dict[str, Way]) -> str:
        """The rival of `way`: OpenMPI, which is faster than gloo, if it is installed."""
        rivals = [name for name in (OPENMPI, GLOO) if name in ways]
        return rivals[0] if rivals and way.library == OURS else ""

    def _turn(self, way: Way, case: str, size: Size) -> list[float]:
        members = self._members[way.library]
        times, used = members.measure(way.memory, case == IN_PLACE, size)
        before = self._used.get(way.name)
        if before:  # the peak covers the whole life of the process
            used = [
                replace(now, cpu_seconds=now.cpu_seconds + old.cpu_seconds)
                for now, old in zip(used, before, strict=True)
            ]
        self._used[way.name] = used
        return times


@contextlib.contextmanager
def started(
    run: record.Run, libraries: list[str], size: int, rival_python: str, network: Network | None
) -> Iterator[dict[str, Members]]:
    """The members of each library. Rivals that are not installed or do not start are recorded as missing."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        members = {}
        for library in libraries:
            if absent := missing(library, rival_python):
                run.missing += [absent] if absent not in run.missing else []
                continue
            address = str(Path(folder) / library)
            start = commands(library, address, size, rival_python, network)
            several = Members(address, size, start)
            stack.callback(several.close)
            try:
                several.meet(size)
            except Unusable as error:
                if library == OURS:
                    raise
                run.missing.append(record.Missing(library, str(error), "repair its installation"))
            else:
                members[library] = several
        yield members


def measure(
    libraries: list[str],
    members: int,
    sizes: list[Size],
    quick: bool,
    rival_python: str = sys.executable,
    tcp: bool = False,
) -> record.Run:
    """Measure all cases: over shared memory, or with `tcp` over each network that there is."""
    environment = record.Environment.here(transport="tcp" if tcp else "shm")
    run = record.Run("All-reduce", environment, quick)
    began = time.monotonic()
    if tcp and (no_veth := missing_veth()):
        run.missing.append(no_veth)
    for network in loopback_and_veth() if tcp else [None]:
        with started(run, libraries, members, rival_python, network) as groups:
            bench = Bench(groups, members, 5 if quick else 50, network)
            for case in CASES:
                for size in sizes:
                    run.results += bench.results(case, size)
    run.finish(time.monotonic() - began)
    return run


@click.command(help=__doc__)
@click.option(
    "--members", default=2, show_default=True, help="Start so many processes of each library."
)
@quick_option("Make fewer turns: about a minute.")
@click.option(
    "--library",
    "libraries",
    multiple=True,
    type=click.Choice(LIBRARIES, case_sensitive=False),
    help="Measure this library; repeatable.",
)
@click.option("--size", "texts", multiple=True, type=click.Choice([s.text for s in SIZES]))
@click.option("--tcp", is_flag=True, help="Measure TCP instead of shared memory.")
@rival_python_option
@json_option
def main(
    members: int,
    quick: bool,
    tcp: bool,
    libraries: tuple[str, ...],
    texts: tuple[str, ...],
    rival_python: str,
    json_file: Path | None,
) -> None:
    sizes = [size for size in SIZES if not texts or size.text in texts]
    with console().status("measuring"):
        chosen = [each for each in libraries or LIBRARIES if not (tcp and each == OPENMPI)]
        run = measure(chosen, members, sizes, quick, rival_python, tcp)
    deliver(run, json_file)


if __name__ == "__main__":
    main()
