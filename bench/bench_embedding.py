# SPDX-License-Identifier: Apache-2.0
"""Embeddings under ParameterServerStrategy: grpc+rdma against stock gRPC, on one machine.

Two clusters, each with a chief, a worker and a parameter server, take turns. The tables have 100,000 rows of
64 floats. A step looks up rows by id, in batches of different lengths, and sends their gradients back, so
tensors of unknown size travel in both directions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from harness import Bench, main
from team import Team
from tf_measure import GRPC, LOCAL, Cluster, Way, compare

WAYS = (GRPC, Way("grpc+rdma", planned=True), LOCAL)
_ROW_BYTES = 64 * 4
# The shortest batch has this many ids fewer.
_FEWER = 8
# A full run makes this many times the steps of a quick run.
FULL = 4


@dataclass(frozen=True)
class Case:
    """Every step looks up `ids` ids in each of `tables` tables."""

    name: str
    tables: int
    ids: int
    target: float | None = None
    steps: int = 60
    block: int = 10
    path: str = ""

    @property
    def build(self) -> dict[str, Any]:
        """The command that builds the step."""
        return {"command": "train", "tables": self.tables, "ids": self.ids}

    @property
    def step_bytes(self) -> int:
        """Bytes that a step moves at least: the rows, and their gradients."""
        return 2 * self.tables * (self.ids - _FEWER) * _ROW_BYTES


CASES = (
    Case("1 table, 1024 ids", 1, 1024),
    Case("1 table, 16384 ids", 1, 16384, target=2),
    Case("8 tables, 2048 ids each", 8, 2048, target=2),
    Case("8 tables, 16384 ids each", 8, 16384, target=2, steps=20, block=5),
)


def measure(bench: Bench) -> None:
    with Team() as team:
        jobs = ("ps", "worker", "chief")
        clusters = [Cluster(team, way, jobs, "tf_embedding_task") for way in WAYS]
        for cluster in clusters:
            cluster.wait()
        for case in bench.wanted(CASES):
            compare(clusters, case, 1 if bench.quick else FULL).record(bench, "embeddings")


if __name__ == "__main__":
    main(measure)
