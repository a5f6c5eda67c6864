# SPDX-License-Identifier: Apache-2.0
"""Embeddings under ParameterServerStrategy: grpc+rdma against stock gRPC, on one machine.

Two clusters, each with a chief, a worker and a parameter server, take turns. The tables have 100,000 rows of
64 floats. A step looks up rows by id, in batches of different lengths, and sends their gradients back, so
tensors of unknown size travel in both directions.
"""

from __future__ import annotations

from harness import Bench, main
from team import Team
from tf_cases import WIDTH, Case
from tf_measure import GRPC, LOCAL, PLANNED, clusters_of, compare


def embedding(
    name: str, tables: int, ids: int, target: float | None, steps: int = 60, block: int = 10
) -> Case:
    """Every step looks up `ids` ids in each of `tables` tables; the shortest batch has eight fewer."""
    rows = 2 * tables * (ids - 8) * WIDTH * 4  # and their gradients
    build = {"command": "embedding", "tables": tables, "ids": ids}
    return Case(name, build, rows, steps, block, target)


CASES = (
    embedding("1 table, 1024 ids", 1, 1024, None),
    embedding("1 table, 16384 ids", 1, 16384, 2),
    embedding("8 tables, 2048 ids each", 8, 2048, 2),
    embedding("8 tables, 16384 ids each", 8, 16384, 2, steps=20, block=5),
)


def measure(bench: Bench) -> None:
    with Team() as team:
        jobs = ("ps", "worker", "chief")
        clusters = clusters_of(team, (GRPC, PLANNED, LOCAL), jobs, "tf_chief_task")
        for case in bench.wanted(CASES):
            compare(bench, "embeddings", clusters, case)


if __name__ == "__main__":
    main(measure)
