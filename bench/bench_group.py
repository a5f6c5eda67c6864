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
from typing import Any, NamedTuple

from harness import KB, MB, Bench, main
from networks import Network, loopback_and_veth
from rdmatensor.units import binary_size
from team import HERE, Failed, Members, Team

OURS, GLOO, OPENMPI = "rdmatensor", "gloo", "OpenMPI"
PATIENCE_S = 300.0


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
# The ways, each with its library and the case of group_member.py.
WAYS = {
    "rdmatensor, registered": (OURS, "registered"),
    "rdmatensor, any array": (OURS, "plain"),
    GLOO: (GLOO, ""),
    OPENMPI: (OPENMPI, ""),
}


def mpirun(size: int) -> list[str]:
    """How OpenMPI starts a program in `size` processes.

    They are not bound to cores, like those of the others. With more processes than cores, OpenMPI needs
    --oversubscribe, and they then yield while they wait, as those of rdmatensor do.
    """
    command = ["mpirun", "-n", str(size), "--bind-to", "none"]
    if size > len(os.sched_getaffinity(0)):
        command.append("--oversubscribe")
    if os.geteuid() == 0:
        command.append("--allow-run-as-root")
    return command


def has_mpirun(bench: Bench) -> bool:
    """Whether OpenMPI is here; if not, it is recorded as missing."""
    there = shutil.which("mpirun") is not None
    if not there:
        bench.missing(OPENMPI, "there is no mpirun", "apt install openmpi-bin")
    return there


def commands(
    library: str, size: int, rival_python: str, place: Callable[[int], list[str]]
) -> list[list[str]]:
    """The command lines of the members, which begin with the place of each rank."""
    python = sys.executable if library == OURS else rival_python
    member = [python, str(HERE / "group_member.py"), library]
    if library != OPENMPI:
        return [[*place(rank), *member, str(rank), str(size)] for rank in range(size)]
    return [[*mpirun(size), *member, "0", str(size)]]


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
    if library == OPENMPI and not has_mpirun(bench):
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


def compare(
    bench: Bench, libraries: dict[str, Members], network: Network | None, size: Size
) -> None:
    """Measure one size in all ways, in turns."""

    def turn(library: str, memory: str) -> list[float]:
        order = {"case": memory, "nbytes": size.nbytes, "calls": size.calls}
        ask = libraries[library].slowest
        ask("steps", PATIENCE_S, count=1, **order)  # warms the caches
        times = ask("steps", PATIENCE_S, count=size.samples, **order)
        return [seconds / size.calls for seconds in times]

    ways = {name: way for name, way in WAYS.items() if way[0] in libraries}
    rival, target = OPENMPI, size.target
    if OPENMPI not in libraries:
        rival, target = GLOO, 1.5 if network and size.nbytes >= 4 * MB else 1.0
    over = f", tcp over {network.name}" if network else ""
    bench.compare(
        f"all-reduce of float32, {len(libraries[OURS])} processes{over}",
        "in place",  # as gloo always works: the result replaces the input
        {name: lambda way=way: turn(*way) for name, way in ways.items()},
        5 if bench.quick else 50,
        rivals={name: (rival, target) for name, way in ways.items() if way[0] == OURS},
        nbytes=size.nbytes,
    )


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
    networks: Any = loopback_and_veth(bench) if tcp else [None]
    for network in networks:
        with Team() as team:
            found = {}
            for library in (OURS, GLOO) if tcp else (OURS, GLOO, OPENMPI):
                if started := start(bench, team, library, members, over(network)):
                    found[library] = started
            for size in bench.wanted(SIZES):
                compare(bench, found, network, size)


if __name__ == "__main__":
    main(measure)
