# SPDX-License-Identifier: Apache-2.0
"""Collective operations of MultiWorkerMirroredStrategy, grpc+rdma against gRPC, and of rdmatensor.train.

A cluster of each protocol is alive at the same time, and they take turns. --with-veth has two workers, over
tcp between two network namespaces, whose links --rate limits, in words of tc.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from harness import KB, MB, Bench, main
from networks import LOOPBACK, Network, may_make_veth, veth
from team import PATIENCE_S, Team
from tf_measure import GRPC, LOCAL, Cluster, Result, Row, Way, compare

# The training step has a square matrix of float32: 17 MB of gradients.
HIDDEN = 2048
# The same without a strategy: the operations of rdmatensor.train, which programs of Keras 3 use.
TRAIN = Way("rdmatensor.train")
PLANNED = Way("grpc+rdma", planned=True)
WAYS = (GRPC, TRAIN, PLANNED, LOCAL)
# A full run makes this many times the steps of a quick run.
FULL = 5


@dataclass(frozen=True)
class Case:
    """`count` all-reduces of `nbytes` bytes in one function; or, with a count of 0, a training step.

    A full run times `steps` steps, in turns of `block`. `target` is the wanted speedup with two workers.
    """

    name: str
    nbytes: int
    count: int
    target: float | None
    steps: int
    block: int

    path: str = "static"

    @property
    def step_bytes(self) -> int:
        """Bytes that a step reduces."""
        return self.nbytes * max(1, self.count)

    @property
    def build(self) -> dict[str, Any]:
        """The command that builds the step."""
        if self.count:
            return {"command": "all_reduce", "bytes_each": self.nbytes, "count": self.count}
        return {"command": "training", "hidden": HIDDEN}


CASES = (
    Case("all-reduce 4 KiB", 4 * KB, 1, 1.2, 800, 40),
    Case("all-reduce 256 KiB", 256 * KB, 1, 1.5, 800, 40),
    Case("all-reduce 4 MiB", 4 * MB, 1, 5, 300, 15),
    Case("all-reduce 64 MiB", 64 * MB, 1, 18, 60, 3),
    Case("50 all-reduces of 4 KiB", 4 * KB, 50, 3, 100, 5),
    Case("training, 17 MB of gradients", 4 * HIDDEN * HIDDEN, 0, 3, 100, 5),
)


class Workers(Cluster):
    """Workers that do everything together. The first one's answer counts."""

    def ask(self, command: str, patience: float = PATIENCE_S, **fields: Any) -> Any:
        """The first worker's answer to a command that goes to all of them."""
        return self.ask_all(command, patience, **fields)[0]


class CollectiveRow(Row):
    """A row whose tensors travel in collective operations, which the counters of paths do not include."""

    def faults(self) -> Iterator[str]:
        """As in Row. With more than two workers the order of additions differs, and so may the losses."""
        two = len(self.results[-1].timed.tasks) == 2
        return (fault for fault in super().faults() if two or fault != "the losses differ")

    def faults_of(self, result: Result) -> Iterator[str]:
        """Operations that TensorFlow did itself, and bytes that went over gRPC."""
        for stats in result.timed.tasks if result.way.name != TRAIN.name else ():
            collectives = stats["collectives"]
            if collectives["by_tensorflow"] or collectives["served_by_grpc"]["bytes"]:
                yield f"left to gRPC: {collectives['by_tensorflow']}"
            if not sum(kind["operations"] for kind in collectives["operations"].values()):
                yield "rdmatensor did no operation"


def with_workers(bench: Bench, count: int, network: Network) -> None:
    local = network is LOOPBACK
    ways = WAYS if local else (GRPC, TRAIN.over_tcp(), PLANNED.over_tcp(), LOCAL)
    suite = f"collectives of TensorFlow, {count} workers"
    suite += "" if local else f", tcp over {network.name}"
    with Team() as team:
        clusters = []
        for way in ways:
            program = "tf_train_task" if way.name == TRAIN.name else "tf_collective_task"
            clusters.append(Workers(team, way, ("worker",) * count, program, network))
        for cluster in clusters:
            cluster.wait()
        for case in bench.wanted(CASES):
            wanted = replace(case, target=case.target if count == 2 and local else None)
            row = compare(clusters, wanted, 1 / FULL if bench.quick else 1, CollectiveRow)
            row.record(bench, suite)


def measure(
    bench: Bench, workers: tuple[int, ...] = (2, 4), with_veth: bool = False, rate: str = ""
) -> None:
    if not with_veth:
        for count in workers:
            with_workers(bench, count, LOOPBACK)
    elif may_make_veth(bench):
        with veth(rate) as network:
            with_workers(bench, 2, network)


if __name__ == "__main__":
    main(measure)
