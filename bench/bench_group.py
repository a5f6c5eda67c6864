# SPDX-License-Identifier: Apache-2.0
"""All-reduce among processes of this machine: rdmatensor.Group, gloo and OpenMPI, in turns.

Every library has processes of its own, of which those of one run at a time. With --tcp, rdmatensor uses TCP
as gloo does, over loopback, and as root between two network namespaces; OpenMPI is left out.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from harness import KB, MB, Bench, main
from networks import Network, loopback_and_veth
from rdmatensor.units import binary_size
from record import Process
from team import HERE, Failed, Members, Team

OURS, GLOO, OPENMPI = "rdmatensor", "gloo", "OpenMPI"
PATIENCE_S = 300.0
TCP_TARGET = 1.5  # from 4 MiB on, against gloo


class Size(NamedTuple):
    """An all-reduce of `nbytes` bytes. A sample is the mean of `calls` calls back to back."""

    nbytes: int
    samples: int
    calls: int
    target: float  # speed relative to OpenMPI

    @property
    def name(self) -> str:
        """As --only knows it."""
        return binary_size(self.nbytes)


SIZES = (
    Size(4 * KB, 10, 200, 1 / 1.5),
    Size(256 * KB, 10, 20, 1 / 1.5),
    Size(4 * MB, 5, 4, 1),
    Size(64 * MB, 3, 1, 1),
)


class Way(NamedTuple):
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


def commands(
    library: str, size: int, rival_python: str, place: Callable[[int], list[str]]
) -> list[list[str]]:
    """The command lines of the members, which begin with the place of each rank."""
    python = sys.executable if library == OURS else rival_python
    member = [python, str(HERE / "group_member.py"), library]
    if library != OPENMPI:
        return [[*place(rank), *member, str(rank), str(size)] for rank in range(size)]
    # Members are not bound to cores, like those of the others. With more members than cores, OpenMPI needs
    # --oversubscribe, and its members then yield while they wait, as those of rdmatensor do.
    command = ["mpirun", "-n", str(size), "--bind-to", "none"]
    if size > len(os.sched_getaffinity(0)):
        command.append("--oversubscribe")
    if os.geteuid() == 0:
        command.append("--allow-run-as-root")
    return [[*command, *member, "0", str(size)]]


def start(
    bench: Bench,
    team: Team,
    library: str,
    size: int,
    place: Callable[[int], list[str]] = lambda rank: [],
) -> Members | None:
    """The members of a library. None, and it is recorded as missing, if it is not here or does not start."""
    module = {GLOO: "torch", OPENMPI: "mpi4py"}.get(library)
    if module and not bench.has(library, module):
        return None
    if library == OPENMPI and not shutil.which("mpirun"):
        bench.missing(library, "there is no mpirun", "apt install openmpi-bin")
        return None
    lines = commands(library, size, bench.rival_python, place)
    many = size if len(lines) < size else 0
    tasks = [task for words in lines for task in team.start(library, words, connections=many)]
    try:
        members = Members(tasks)
        offers = dict(members.ask("offer", PATIENCE_S))
        members.ask("join", PATIENCE_S, offer=offers[0])
    except Failed as failure:
        if library == OURS:
            raise
        for task in tasks:
            team.drop(task)
        bench.missing(library, failure.message, "repair its installation")
        return None
    return members


class Libraries:
    """The members of each library that there is, over shared memory or a network."""

    def __init__(self, bench: Bench, members: dict[str, Members], network: Network | None) -> None:
        self._bench, self._members, self._network = bench, members, network
        self._used: dict[str, list[Process]] = {}

    def measure(self, case: str, size: Size) -> None:
        """Measure one size in all ways, in turns."""
        ways = {way.name: way for way in CASES[case] if way.library in self._members}
        count, rival = len(self._members[OURS]), OPENMPI if OPENMPI in ways else GLOO
        target = size.target
        if rival == GLOO:
            target = TCP_TARGET if self._network and size.nbytes >= 4 * MB else 1.0
        for way in ways.values():
            self._turn(way, case, size)  # touches memory for the first time
        self._used.clear()
        over = f", tcp over {self._network.name}" if self._network else ""
        self._bench.compare(
            f"all-reduce of float32, {count} processes{over}",
            case,
            {name: lambda way=way: self._turn(way, case, size) for name, way in ways.items()},
            5 if self._bench.quick else 50,
            rivals={name: (rival, target) for name, way in ways.items() if way.library == OURS},
            nbytes=size.nbytes,
            processes_of=self._used,
            members=count,
            calls=size.calls,
        )

    def _turn(self, way: Way, case: str, size: Size) -> list[float]:
        order = {"nbytes": size.nbytes, "samples": size.samples, "calls": size.calls}
        answers = self._members[way.library].ask(
            *("measure", PATIENCE_S), case=way.memory, in_place=case == IN_PLACE, **order
        )
        times, used = zip(*answers, strict=True)
        now = [Process(f"member {number}", *each) for number, each in enumerate(used)]
        if before := self._used.get(way.name):  # the peak covers the whole life of the process
            pairs = zip(now, before, strict=True)
            now = [replace(a, cpu_seconds=a.cpu_seconds + b.cpu_seconds) for a, b in pairs]
        self._used[way.name] = now
        return [max(each) for each in zip(*times, strict=True)]


def over(network: Network | None) -> Callable[[int], list[str]]:
    """Where each rank is. With a network, every second one uses TCP at its other end."""

    def place(rank: int) -> list[str]:
        if network is None:
            return []
        far = rank % 2 == 1
        settings = {"GLOO_SOCKET_IFNAME": network.interface(far), **network.over_tcp(far)}
        pairs = [f"{name}={value}" for name, value in settings.items()]
        return [*(network.prefix if far else ()), "env", *pairs]

    return place


def measure(bench: Bench, members: int = 2, tcp: bool = False) -> None:
    libraries = (OURS, GLOO) if tcp else (OURS, GLOO, OPENMPI)
    networks: Any = loopback_and_veth(bench) if tcp else [None]
    for network in networks:
        with Team() as team:
            started = {each: start(bench, team, each, members, over(network)) for each in libraries}
            found = Libraries(bench, {k: v for k, v in started.items() if v}, network)
            for case in CASES:
                for size in bench.wanted(SIZES):
                    found.measure(case, size)


if __name__ == "__main__":
    main(measure)
