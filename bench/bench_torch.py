# SPDX-License-Identifier: Apache-2.0
"""Operations of torch.distributed among processes of this machine, on rdmatensor and on gloo, in turns.

The same processes have both backends. Those of OpenMPI, which torch lacks, are other ones, without torch.
With --tcp, rdmatensor uses TCP as gloo does, over loopback, and as root between two network namespaces;
OpenMPI is left out.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from bench_group import OPENMPI, has_mpirun, mpirun, over
from harness import KB, MB, Bench, Way, main
from networks import Network, loopback_and_veth
from team import HERE, Case, Members, Team

OURS, REGISTERED, GLOO, ALONE = "rdmatensor", "rdmatensor, registered", "gloo", "alone"
PATIENCE_S = 300.0
KINDS = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "broadcast",
    "send and receive",
)
WAYS = {OURS: ("rdmatensor", ""), REGISTERED: ("rdmatensor", "registered"), GLOO: ("gloo", "")}
TRAINING = {
    "DDP": {**WAYS, "nothing sent": ("gloo", "kept")},
    "FSDP2": {OURS: WAYS[OURS], GLOO: WAYS[GLOO]},
}
SIZES = ((8, 10, 100), (4 * KB, 10, 100), (256 * KB, 10, 10), (4 * MB, 5, 2), (64 * MB, 2, 1))
# How many times as much communication adds over gloo as it shall add here.
ADDED = {"DDP": 2.5, "FSDP2": 1.67}
CASES = [Case(kind, *size) for kind in KINDS for size in SIZES]


def speed_wanted(case: Case, way: str, tcp: bool) -> float:
    """How many times as fast as gloo."""
    if tcp:
        return 3.0 if case.nbytes <= 4 * KB else 1.2
    return 5.0 if case.nbytes <= 4 * KB else 3.0 if way == REGISTERED else 2.0


def open_mpi(bench: Bench, team: Team, size: int) -> Members | None:
    """The processes of OpenMPI. None, and it is recorded as missing, if it is not here."""
    if not (bench.has(OPENMPI, "mpi4py") and has_mpirun(bench)):
        return None
    command = [*mpirun(size), bench.rival_python, HERE / "mpi_member.py"]
    return Members(team.start(OPENMPI, command, connections=size))


def compare(
    bench: Bench, members: Members, mpi: Members | None, network: Network | None, case: Case
) -> None:
    """Measure one operation of one size in all ways, in turns."""

    def turn(backend: str, memory: str) -> list[float]:
        return members.turn(case, PATIENCE_S, backend=backend, memory=memory)

    ways: dict[str, Way] = {name: lambda way=way: turn(*way) for name, way in WAYS.items()}
    if mpi is not None:
        ways[OPENMPI] = lambda: mpi.turn(case, PATIENCE_S)
    over_network = f", tcp over {network.name}" if network else ""
    bench.compare(
        f"torch.distributed, {len(members)} processes{over_network}",
        case.kind,
        ways,
        2 if bench.quick else 10,
        rivals={
            name: (GLOO, speed_wanted(case, name, network is not None))
            for name in (OURS, REGISTERED)
        },
        nbytes=case.nbytes,
    )


def train(bench: Bench, members: Members, kind: str) -> None:
    """Measure what communication adds to a step of DistributedDataParallel, or of FSDP2."""

    def turn(backend: str, memory: str) -> list[float]:
        order: Any = {"kind": kind, "nbytes": 0, "calls": 1}
        alone = members.slowest("steps", PATIENCE_S, count=10, backend=ALONE, memory="", **order)
        steps = members.slowest(
            "steps", PATIENCE_S, count=10, backend=backend, memory=memory, **order
        )
        least = sorted(alone)[len(alone) // 2]
        return [max(each - least, 1e-6) for each in steps]

    bench.compare(
        f"torch.distributed, {len(members)} processes",
        f"{kind} step, 17 MB of gradients: what communication adds",
        {name: lambda way=way: turn(*way) for name, way in TRAINING[kind].items()},
        2 if bench.quick else 10,
        rivals=dict.fromkeys((OURS, REGISTERED), (GLOO, ADDED[kind])),
    )


def measure(bench: Bench, members: int = 2, tcp: bool = False) -> None:
    networks: Any = loopback_and_veth(bench) if tcp else [None]
    if not bench.has("torch", "torch", python=sys.executable):
        return
    for network in networks:
        with Team() as team, tempfile.TemporaryDirectory() as folder:
            words = [Path(folder, "meeting")]
            found = team.members("torch_member", members, place=over(network), words=words)
            mpi = None if network else open_mpi(bench, team, members)
            for case in bench.wanted(CASES):
                compare(bench, found, mpi, network, case)
            for kind in bench.wanted(list(ADDED)) if not network else ():
                train(bench, found, kind)


if __name__ == "__main__":
    main(measure)
