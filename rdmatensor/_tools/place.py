# SPDX-License-Identifier: Apache-2.0
"""`rdmatensor launch --place`: make ranks of Slurm, MPI or Kubernetes tasks of a cluster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from .tf_config import NAME, Task, cluster_of, text_for, with_protocol

# The rank of a process under Slurm, Open MPI, MPICH, and in Indexed Jobs of Kubernetes.
RANKS = ("SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "JOB_COMPLETION_INDEX")


def rank_in(environment: Mapping[str, str]) -> int:
    """Return the rank of this process. Raises ValueError, with the variables that were tried, if it has
    none.
    """
    for name in RANKS:
        if name in environment:
            try:
                return int(environment[name])
            except ValueError:
                raise ValueError(f"{name} is {environment[name]!r}, which is not a rank") from None
    raise ValueError(f"this process has no rank: none of {', '.join(RANKS)} is set")


def config_in(environment: Mapping[str, str], place: str, ps: int, port: int, protocol: str) -> str:
    """Return TF_CONFIG for this process. `place` names the hosts of the ranks, or is "TF_CONFIG".

    Raises ValueError if the environment has no rank, no TF_CONFIG to keep, or one that does not fit.
    """
    if place != NAME:
        return config_of(place.split(","), rank_in(environment), ps, port, protocol)
    if not environment.get(NAME):
        raise ValueError(f"{NAME} is not set: name the hosts of the ranks instead")
    return with_protocol(environment[NAME], protocol)


def config_of(hosts: Sequence[str], rank: int, ps: int, port: int, protocol: str) -> str:
    """Return TF_CONFIG for a rank. `hosts` are those of the ranks 0, 1, ...

    A host that is named twice has two tasks, at `port` and the port after it.

    All ranks are workers; with `ps`, rank 0 is the chief, the next `ps` are parameter servers, and the
    others workers. Raises ValueError if the cluster has no such rank, or no worker.
    """
    if "" in hosts:
        raise ValueError(f"a host without a name in {','.join(hosts)!r}")
    if not 0 <= rank < len(hosts):
        raise ValueError(f"rank {rank} of {len(hosts)} hosts: name one host for each rank")
    first = [Task("chief", 0), *(Task("ps", i) for i in range(ps))] if ps else []
    if len(first) >= len(hosts):
        raise ValueError(
            f"{len(hosts)} hosts leave none for a worker: {ps + 2} are needed, or more"
        )
    tasks = [*first, *(Task("worker", i) for i in range(len(hosts) - len(first)))]
    return text_for(cluster_of(tasks, addresses_of(hosts, port)), tasks[rank], protocol)


def addresses_of(hosts: Sequence[str], port: int) -> list[str]:
    """Return "HOST:PORT" for each host. One that is named twice has two tasks, at `port` and the one after
    it.
    """
    tasks: Counter[str] = Counter()
    found = []
    for host in hosts:
        found.append(f"{host}:{port + tasks[host]}")
        tasks[host] += 1
    return found
