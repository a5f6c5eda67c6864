# SPDX-License-Identifier: Apache-2.0
"""Tells a program its place in a cluster, from what Slurm, MPI or Kubernetes tells every process.

    python place.py [--ps N] [--protocol grpc] HOST,HOST,... PROGRAM [ARGUMENTS]

runs PROGRAM with TF_CONFIG set. The hosts are those of the ranks 0, 1, ...; all are workers. With --ps, rank
0 is the chief, the next N are parameter servers, and the others workers. See docs/launch.md.
"""

from __future__ import annotations

import argparse
import json
import os
from collections import Counter

RANKS = ("SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "JOB_COMPLETION_INDEX")
PORT = 2222


def addresses(hosts: list[str]) -> list[str]:
    """Each host's tasks listen at ports from PORT on."""
    tasks: Counter[str] = Counter()
    found = []
    for host in hosts:
        found.append(f"{host}:{PORT + tasks[host]}")
        tasks[host] += 1
    return found


def jobs(count: int, ps: int) -> list[tuple[str, int]]:
    """What each rank is."""
    first = [("chief", 0), *(("ps", i) for i in range(ps))] if ps else []
    return [*first, *(("worker", i) for i in range(count - len(first)))]


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--ps", type=int, default=0)
    parser.add_argument("--protocol", default="grpc+rdma")
    parser.add_argument("hosts")
    parser.add_argument("program", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    rank = next((int(os.environ[name]) for name in RANKS if name in os.environ), None)
    hosts = options.hosts.split(",")
    places = jobs(len(hosts), options.ps)
    if rank is None or rank >= len(hosts):
        parser.error(f"rank {rank} of {len(hosts)} hosts: is this one of {', '.join(RANKS)}?")
    if not options.program or places[-1][0] != "worker":
        parser.error("a program, and a host for a worker, are needed")
    cluster: dict[str, list[str]] = {}
    for (job, _), address in zip(places, addresses(hosts), strict=True):
        cluster.setdefault(job, []).append(address)
    job, index = places[rank]
    os.environ["TF_CONFIG"] = json.dumps(
        {
            "cluster": cluster,
            "task": {"type": job, "index": index},
            "rpc_layer": options.protocol,
        }
    )
    os.execvp(options.program[0], options.program)


if __name__ == "__main__":
    main()
