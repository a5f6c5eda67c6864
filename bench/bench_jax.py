# SPDX-License-Identifier: Apache-2.0
"""Collective operations of JAX among processes of this machine, over rdmatensor and over gloo, in turns.

All ways have the large pages of `rdmatensor launch --jax`: fresh memory would take longer than communication.

Each way has processes of its own, because a process has one implementation; the others sleep meanwhile.
OpenMPI takes part if MPITRAMPOLINE_OPENMPI is the path of MPIwrapper, built for it. With it, the caller's
thread runs programs, as with "rdmatensor, at once"; otherwise JAX gives all but the smallest to another.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from bench_group import OPENMPI, has_mpirun, mpirun
from harness import KB, MB, Bench, main
from rdmatensor._tools.launch import LARGE_PAGES
from team import HERE, Case, Members, Team, free_port

OURS, AT_ONCE, GLOO = "rdmatensor", "rdmatensor, at once", "gloo"
PATIENCE_S = 300.0
SIZES = ((8, 10, 20), (4 * KB, 10, 20), (4 * MB, 5, 2), (64 * MB, 2, 1))
CASES = [Case("psum", *size) for size in SIZES] + [
    Case(kind, 4 * MB, 5, 2) for kind in ("all_gather", "psum_scatter", "all_to_all", "ppermute")
]


def open_mpi(bench: Bench, team: Team, size: int) -> Members | None:
    """The processes of OpenMPI. None, and it is recorded as missing, if it is not here."""
    wrapper = os.environ.get("MPITRAMPOLINE_OPENMPI", "")
    if not Path(wrapper).is_file():
        bench.missing(
            OPENMPI,
            "there is no MPIwrapper, by which JAX loads it",
            "build https://github.com/eschnett/MPIwrapper, and set MPITRAMPOLINE_OPENMPI to libmpiwrapper.so",
        )
        return None
    if not has_mpirun(bench):
        return None
    words = [sys.executable, HERE / "jax_member.py", OPENMPI, f"127.0.0.1:{free_port()}"]
    variables = {**LARGE_PAGES, "MPITRAMPOLINE_LIB": wrapper, "TF_CPP_MIN_LOG_LEVEL": "2"}
    return Members(team.start(OPENMPI, [*mpirun(size), *words], variables, size))


def compare(bench: Bench, members: dict[str, Members], case: Case) -> None:
    """Measure one operation of one size in all ways, in turns."""
    small = case.nbytes <= 4 * KB
    bench.compare(
        f"jax.distributed, {len(members[OURS])} processes",
        case.kind,
        {name: lambda those=those: those.turn(case, PATIENCE_S) for name, those in members.items()},
        2 if bench.quick else 10,
        rivals={OURS: (GLOO, 3.0 if small else 2.0), AT_ONCE: (OPENMPI, 1.0 if small else None)},
        nbytes=case.nbytes,
    )


def measure(bench: Bench, members: int = 2) -> None:
    if not bench.has("jax", "jax", python=sys.executable):
        return
    with Team() as team:
        made = {
            name: team.members(
                "jax_member", members, LARGE_PAGES, words=[name, f"127.0.0.1:{free_port()}"]
            )
            for name in (OURS, AT_ONCE, GLOO)
        }
        if (mpi := open_mpi(bench, team, members)) is not None:
            made[OPENMPI] = mpi
        for case in bench.wanted(CASES):
            compare(bench, made, case)


if __name__ == "__main__":
    main(measure)
