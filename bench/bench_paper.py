# SPDX-License-Identifier: Apache-2.0
"""The comparison of the RDMA paper, rebuilt: six workloads and four ways to move their tensors, in one run.

docs/papers.md explains the ways, the steps, and what the figures do not show.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from harness import Bench, main
from paper_models import MIB, MODELS, Model
from rdmatensor.units import duration, size
from team import Team
from tf_cases import Case
from tf_measure import GRPC, LOCAL, STOCK, Result, Way, clusters_of, compare

_ABLATION = "RDMATENSOR_TEST_ABLATION"
TCP = Way("gRPC.TCP", GRPC.protocol)
RPC = Way("RPC-over-RDMA", settings={_ABLATION: "2"})
COPY = Way("RDMA.cp", planned=True, settings={_ABLATION: "1"})
ZERO = Way("RDMA.zerocp", planned=True)
WAYS = {way.name: way for way in (TCP, RPC, COPY, ZERO)}
# Enough for setting up and comparing half a gigabyte at both ends, and for a block of its steps over gRPC.
_PATIENCE_S = 600.0
# Up to this size tensors travel inside notifications (INLINE_BYTES), or are copied into their places
# (PLAN_COPY_BYTES).
_SMALL = 16384


@dataclass(frozen=True)
class Workload:
    """Steps of one model. `batch` is 0 if the compute time was not derived from a batch size."""

    model: Model
    workers: int
    compute_s: float
    batch: int
    reads: bool

    @property
    def tensors(self) -> int:
        """How many tensors a step moves: variables to each worker, and gradients back."""
        return 2 * self.workers * self.model.count

    @property
    def nbytes(self) -> int:
        """The bytes of these tensors."""
        return 2 * self.workers * self.model.nbytes

    @property
    def large(self) -> int:
        """The number of the tensors in a step that do not travel inside notifications."""
        sizes = [4 * math.prod(shape) for shape in self.model.shapes]
        return 2 * self.workers * sum(nbytes > _SMALL for nbytes in sizes)

    def case(self, verify: bool) -> Case:
        """How it is measured: in fewer steps if they take long."""
        plural = "s" if self.workers > 1 else ""
        what = f"batch {self.batch}" if self.batch else f"compute {self.compute_s * 1e3:g} ms"
        every = ", every byte read" if self.reads else ""
        block = 2 if self.nbytes > 300 * MIB or self.compute_s > 0.2 else 5
        build = {
            "command": "replica",
            "model": self.model.name,
            "workers": self.workers,
            "compute_s": self.compute_s,
            "consumer": "read" if self.reads else "slice",
            "verify": verify,
        }
        return Case(
            *(f"{self.model.name}, {self.workers} worker{plural}, {what}{every}", build),
            *(self.nbytes, 3 * block, block),
            self.model.target if self.compute_s == 0 and not self.reads else None,
        )


def faults_of(workload: Workload, case: Case, result: Result) -> Iterator[str]:
    """Yield each contradiction between a result and the counters. Each way has rules of its own."""
    steps = result.steps
    if (shortest := min(result.all)) < workload.compute_s:
        yield f"a step took {duration(shortest)}, less than it computes"
    if result.way.protocol == STOCK:
        if (moved := result.carried_bytes) < case.step_bytes:
            yield f"a step moved only {size(moved)} over loopback"
        return
    use, tensors = result.use, result.use.sent("tensors")
    if result.way == RPC:
        if (asked := tensors["rpc"]) < steps * workload.tensors:
            yield f"only {asked / steps:.4g} tensors of a step were asked for"
        if over_grpc := use.grpc_calls:
            yield f"{over_grpc} calls were made over gRPC"
        return
    yield from use.avoidable()
    if use.pushed_bytes() < steps * case.step_bytes:
        yield f"a step moved only {size(use.pushed_bytes() / steps)}"
    large, lent = steps * workload.large, use.total("fetched", "in_place", "tensors")
    if unplanned := tensors.total() - tensors["static"]:
        yield f"{unplanned} tensors did not go to their planned places"
    if result.way == COPY and lent:
        yield f"{lent} tensors were not copied"
    if result.way == ZERO and lent < large:
        yield f"{large - lent} large tensors were copied"


def groups_of(model: Model, workers: int, ways: list[Way]) -> list[list[Way]]:
    """The ways that take turns: all of them, or each alone if they do not fit into memory together.

    While all elements are compared, a process takes 600 MB and, for each worker, a multiple of the model that
    VGG-16 has shown. Where nothing is remote, one process has the variables and the gradients.
    """
    multiples = {TCP.name: 7, RPC.name: 7, COPY.name: 10, ZERO.name: 6}
    copies = 4 + sum(multiples[way.name] for way in ways)
    processes = len(ways) * (workers + 1) + 1
    needed = copies * workers * model.nbytes + processes * 600 * 1000**2
    fields = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    available = int(fields["MemAvailable"].split()[0]) * 1024
    return [ways] if needed <= 0.8 * available else [[way] for way in ways]


def measure(
    bench: Bench,
    way: tuple[str, ...] = (),
    workers: tuple[int, ...] = (1, 2, 3),
    compute: tuple[float, ...] = (0.0,),
    batch: tuple[int, ...] = (1, 8, 32),
    read: bool = False,
) -> None:
    ways = [each for name, each in WAYS.items() if not way or name in way]
    several = [
        (model, count)
        for model in bench.wanted(list(MODELS.values()))
        for count in (workers[:1] if bench.quick else workers)
    ]
    for model, count in several:
        times = [(0, each / 1e3) for each in compute]
        if not bench.quick:
            times += [(each, each * model.compute_ms / 1e3) for each in batch]
        for group in groups_of(model, count, ways):
            with Team() as team:
                clusters = clusters_of(team, (*group, LOCAL), ("worker",) * (count + 1))
                for number, (size_, seconds) in enumerate(times):
                    load = Workload(model, count, seconds, size_, read)
                    compare(
                        *(bench, "paper", clusters, load.case(verify=number == 0)),
                        full=10 / 3,
                        patience=_PATIENCE_S,
                        check=partial(faults_of, load),
                    )


if __name__ == "__main__":
    main(measure)
