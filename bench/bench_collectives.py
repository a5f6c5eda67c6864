# SPDX-License-Identifier: Apache-2.0
"""Collective operations of MultiWorkerMirroredStrategy, grpc+rdma against gRPC, and of rdmatensor.train.

A cluster of each protocol is alive at the same time, and they take turns.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from harness import KB, MB, Bench, main
from rdmatensor.units import binary_size
from team import PATIENCE_S, Team
from tf_cases import Case
from tf_measure import GRPC, LOCAL, PLANNED, Cluster, Result, Way, clusters_of, compare

# The training step has a square matrix of float32: 17 MB of gradients.
HIDDEN = 2048
# The same without a strategy: the operations of rdmatensor.train, which programs of Keras 3 use.
TRAIN = Way("rdmatensor.train", settings={"RDMATENSOR_BENCH_TRAIN": "1"})


def reductions(nbytes: int, count: int, target: float, steps: int, block: int) -> Case:
    """`count` all-reduces of `nbytes` bytes in one function. `target` is for two workers."""
    several = f"{count} all-reduces of" if count > 1 else "all-reduce"
    build = {"command": "all_reduce", "bytes_each": nbytes, "count": count}
    name = f"{several} {binary_size(nbytes)}"
    return Case(name, build, nbytes * count, steps, block, target)


CASES = (
    reductions(4 * KB, 1, 1.2, 160, 40),
    reductions(256 * KB, 1, 1.5, 160, 40),
    reductions(4 * MB, 1, 5, 60, 15),
    reductions(64 * MB, 1, 18, 12, 3),
    reductions(4 * KB, 50, 3, 20, 5),
    Case(
        *("training, 17 MB of gradients", {"command": "training", "hidden": HIDDEN}),
        *(4 * HIDDEN * HIDDEN, 20, 5, 3),
    ),
)


class Workers(Cluster):
    """Workers that do everything together. The first one's answer counts."""

    def ask(self, command: str, patience: float = PATIENCE_S, **fields: Any) -> Any:
        """The first worker's answer to a command that goes to all of them."""
        return self.ask_all(command, patience, **fields)[0]


def faults_of(case: Case, result: Result) -> Iterator[str]:
    """Operations that TensorFlow did itself, and bytes that went over gRPC.

    The counters of paths do not include collective operations.
    """
    for stats in result.use.tasks if result.way.name != TRAIN.name else ():
        collectives = stats["collectives"]
        if collectives["by_tensorflow"] or collectives["served_by_grpc"]["bytes"]:
            yield f"left to gRPC: {collectives['by_tensorflow']}"
        if not sum(kind["operations"] for kind in collectives["operations"].values()):
            yield "rdmatensor did no operation"


def measure(bench: Bench, workers: tuple[int, ...] = (2, 4)) -> None:
    for count in workers:
        with Team() as team:
            more = (("worker",) * count, "tf_collective_task")
            clusters = clusters_of(team, (GRPC, TRAIN, PLANNED, LOCAL), *more, make=Workers)
            for case in bench.wanted(CASES):
                compare(
                    *(bench, f"collectives of TensorFlow, {count} workers", clusters),
                    replace(case, target=case.target if count == 2 else None),
                    full=5,
                    check=faults_of,
                    # With more than two workers the order of additions differs, and so may the losses.
                    same_losses=count == 2,
                )


if __name__ == "__main__":
    main(measure)
