# SPDX-License-Identifier: Apache-2.0
"""The comparison of the RDMA paper, rebuilt: six workloads and four ways to move their tensors, in one run.

docs/papers.md explains the ways, the steps, and what the figures do not show.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness import Bench, main
from paper_models import MIB, MODELS, Model
from rdmatensor.units import duration, size
from team import Team
from tf_measure import GRPC, LOCAL, STOCK, Cluster, Result, Row, Way
from tf_measure import measure as measure_steps

_ABLATION = "RDMATENSOR_TEST_ABLATION"
TCP = Way("gRPC.TCP", GRPC.protocol)
RPC = Way("RPC-over-RDMA", settings={_ABLATION: "2"})
COPY = Way("RDMA.cp", planned=True, settings={_ABLATION: "1"})
ZERO = Way("RDMA.zerocp", planned=True)
WAYS = {way.name: way for way in (TCP, RPC, COPY, ZERO)}

# The paper's best speedup over an RPC that copies at both ends.
RPC_TARGET = 2.7
SUITE = "paper"
# Enough for setting up and comparing half a gigabyte at both ends, and for a block of its steps over gRPC.
_PATIENCE_S = 600.0
# Up to this size tensors travel inside notifications (INLINE_BYTES), or are copied into their places
# (PLAN_COPY_BYTES).
_SMALL = 16384


@dataclass(frozen=True)
class Case:
    """Steps of one model. `batch` is 0 if the compute time was not derived from a batch size."""

    model: Model
    workers: int
    compute_s: float
    batch: int
    reads: bool

    @property
    def name(self) -> str:
        """The name in tables and in the record."""
        plural = "s" if self.workers > 1 else ""
        what = f"batch {self.batch}" if self.batch else f"compute {self.compute_s * 1e3:g} ms"
        every = ", every byte read" if self.reads else ""
        return f"{self.model.name}, {self.workers} worker{plural}, {what}{every}"

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

    def build(self, verify: bool) -> dict[str, Any]:
        """The command that builds the step."""
        return {
            "command": "replica",
            "model": self.model.name,
            "workers": self.workers,
            "compute_s": self.compute_s,
            "consumer": "read" if self.reads else "slice",
            "verify": verify,
        }


@dataclass(frozen=True)
class PaperRow(Row):
    """A case whose results are checked by what each way should do."""

    case: Case = field(kw_only=True)

    def faults_of(self, result: Result) -> Iterator[str]:
        """Tensors that took another path than they should, or were copied too often or too rarely."""
        return faults_of(self.case, result)


def faults_of(case: Case, result: Result) -> Iterator[str]:
    """What the counters say against a result. Each way is checked differently."""
    steps = result.samples.steps
    if (shortest := min(result.samples.all)) < case.compute_s:
        yield f"a step took {duration(shortest)}, less than it computes"
    if result.way.protocol == STOCK:
        if (moved := result.samples.carried_bytes) < case.nbytes:
            yield f"a step moved only {size(moved)} over loopback"
        return
    use, tensors = result.timed, result.timed.sent("tensors")
    if result.way == RPC:
        if (asked := tensors["rpc"]) < steps * case.tensors:
            yield f"only {asked / steps:.4g} tensors of a step were asked for"
        if over_grpc := use.grpc_calls:
            yield f"{over_grpc} calls were made over gRPC"
        return
    yield from use.avoidable()
    if use.pushed_bytes() < steps * case.nbytes:
        yield f"a step moved only {size(use.pushed_bytes() / steps)}"
    large, lent = steps * case.large, use.total("fetched", "in_place", "tensors")
    if unplanned := tensors.total() - tensors["static"]:
        yield f"{unplanned} tensors did not go to their planned places"
    if result.way == COPY and lent:
        yield f"{lent} tensors were not copied"
    if result.way == ZERO and lent < large:
        yield f"{large - lent} large tensors were copied"


def memory_needed(model: Model, workers: int, ways: Sequence[Way]) -> int:
    """Roughly the bytes that the clusters of a model hold while all elements are compared.

    That is 600 MB for each process and, for each worker, a multiple of the model that VGG-16 has shown.
    """
    copies = {TCP.name: 7, RPC.name: 7, COPY.name: 10, ZERO.name: 6}
    # Where nothing is remote, one process has the variables and the gradients.
    bodies = sum([4, *(copies[way.name] for way in ways)]) * workers * model.nbytes
    return bodies + (len(ways) * (workers + 1) + 1) * 600 * 1000**2


def memory_available() -> int:
    """Bytes that new processes on this machine can use."""
    fields = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    return int(fields["MemAvailable"].split()[0]) * 1024


def groups_of(model: Model, workers: int, ways: list[Way]) -> list[list[Way]]:
    """The ways that take turns, as memory permits: all of them, each with zerocp, or each alone."""

    def fit(group: list[Way]) -> bool:
        return memory_needed(model, workers, group) <= 0.8 * memory_available()

    pairs = [[way, ZERO] for way in ways if way != ZERO]
    if fit(ways) or not pairs:
        return [ways]
    if ZERO in ways and all(map(fit, pairs)):
        return pairs
    return [[way] for way in ways]


def run_model(bench: Bench, cases: list[Case], ways: list[Way]) -> None:
    """Measure the cases of one model and number of workers."""
    model, workers = cases[0].model, cases[0].workers
    for group in groups_of(model, workers, ways):
        with Team() as team:
            clusters = [Cluster(team, way, ("worker",) * (workers + 1)) for way in (*group, LOCAL)]
            for cluster in clusters:
                cluster.wait()
            for number, case in enumerate(cases):
                steps, block = _steps(case, bench.quick)
                build = case.build(verify=number == 0)
                *results, floor = measure_steps(clusters, build, steps, block, _PATIENCE_S)
                target = case.model.target if case.compute_s == 0 and not case.reads else None
                row = PaperRow(case.name, case.nbytes, target, results, None, floor, case=case)
                about = {"model": model.name, "workers": workers, "batch": case.batch}
                about |= {"compute_ms": case.compute_s * 1e3, "tensors": case.tensors}
                row.record(bench, SUITE, every_byte_read=case.reads, **about)


def _steps(case: Case, quick: bool) -> tuple[int, int]:
    """The number of timed steps, and of steps in a turn; fewer if a step takes long."""
    block = 2 if case.nbytes > 300 * MIB or case.compute_s > 0.2 else 5
    return block * (3 if quick else 10), block


def plan_cases(
    model: Model, workers: int, compute_ms: Sequence[float], batches: Sequence[int], reads: bool
) -> list[Case]:
    """The cases of one model and number of workers."""
    cases = [Case(model, workers, each / 1e3, 0, reads) for each in compute_ms]
    return cases + [
        Case(model, workers, each * model.compute_ms / 1e3, each, reads) for each in batches
    ]


def measure(
    bench: Bench,
    way: tuple[str, ...] = (),
    workers: tuple[int, ...] = (1, 2, 3),
    compute: tuple[float, ...] = (0.0,),
    batch: tuple[int, ...] = (1, 8, 32),
    read: bool = False,
) -> None:
    ways = [each for name, each in WAYS.items() if not way or name in way]
    for model in bench.wanted(list(MODELS.values())):
        for count in workers[:1] if bench.quick else workers:
            batches = () if bench.quick else batch
            run_model(bench, plan_cases(model, count, compute, batches, read), ways)


if __name__ == "__main__":
    main(measure)
