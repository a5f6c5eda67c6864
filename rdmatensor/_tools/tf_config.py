# SPDX-License-Identifier: Apache-2.0
"""TF_CONFIG: how a launcher tells a TensorFlow program the cluster, and the program's place in it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

NAME = "TF_CONFIG"
PROTOCOL = "grpc+rdma"


@dataclass(frozen=True)
class Task:
    """One process of a cluster."""

    job: str
    index: int

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.job} {self.index}"


def cluster_of(tasks: Sequence[Task], addresses: Sequence[str]) -> dict[str, list[str]]:
    """Return TensorFlow's description of a cluster whose tasks have these addresses."""
    cluster: dict[str, list[str]] = {}
    for task, address in zip(tasks, addresses, strict=True):
        cluster.setdefault(task.job, []).append(address)
    return cluster


def text_for(cluster: Mapping[str, Sequence[str]], task: Task, protocol: str) -> str:
    """Return the value of TF_CONFIG for a task. "rpc_layer" is the one that cluster resolvers read."""
    place = {"type": task.job, "index": task.index}
    return json.dumps({"cluster": cluster, "task": place, "rpc_layer": protocol})


def rank_variables(cluster: Mapping[str, Sequence[str]], task: Task) -> dict[str, str]:
    """Return the variables of torchrun for a task, from which torch.distributed reads its place.

    There are none with parameter servers. Rank 0 is the chief if there is one, as in rdmatensor.train. Tasks
    that share a host get one thread each for OpenMP, unless this process has OMP_NUM_THREADS.
    """
    if "ps" in cluster:
        return {}
    members = [
        (Task(job, index), address)
        for job in ("chief", "worker")
        for index, address in enumerate(cluster.get(job, ()))
    ]
    rank = [member for member, _ in members].index(task)
    hosts = [address.rpartition(":")[0] for _, address in members]
    host, _, port = members[0][1].rpartition(":")
    shares = hosts.count(hosts[rank]) > 1 and "OMP_NUM_THREADS" not in os.environ
    threads = {"OMP_NUM_THREADS": "1"} if shares else {}
    return {
        **threads,
        "RANK": str(rank),
        "WORLD_SIZE": str(len(members)),
        "LOCAL_RANK": str(hosts[:rank].count(hosts[rank])),
        "MASTER_ADDR": host.strip("[]"),
        "MASTER_PORT": port,
    }


def with_protocol(text: str, protocol: str) -> str:
    """Return a launcher's TF_CONFIG with "rpc_layer", or as it is if it has no cluster or names a protocol.

    Raises ValueError if it is no JSON object.
    """
    try:
        config = json.loads(text or "{}")
    except ValueError as error:
        raise ValueError(f"TF_CONFIG is not JSON ({error}): {text[:80]!r}") from None
    if not isinstance(config, dict):
        raise ValueError(f"TF_CONFIG is not a JSON object: {text[:80]!r}")
    if not config.get("cluster") or config.get("rpc_layer"):
        return text
    return json.dumps({**config, "rpc_layer": protocol})
