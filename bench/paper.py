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

import click
from rich.table import Table

from options import benchmark, json_option, only_option, quick_option
from paper_models import MIB, MODELS, Model
from paths import STOCK
from rdmatensor.bench import record
from rdmatensor.bench.report import excess
from rdmatensor.units import duration, size
from team import Team
from tf_measure import FLOOR, GRPC, LOCAL, Cluster, Result, Way, measure
from tf_report import span, speedup, verdict

_ABLATION = "RDMATENSOR_ABLATION"
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
class Measured:
    """One way, what its processes used, and zerocp if the two were measured in turns."""

    result: Result
    processes: list[record.Process]
    best: Result | None


@dataclass(frozen=True)
class Row:
    """One case in all ways."""

    case: Case
    measured: list[Measured]
    # The same step with nothing remote.
    floor: list[Result] = field(default_factory=list)

    def over_floor(self, result: Result) -> float:
        """The seconds that a step takes longer than the same step with nothing remote."""
        return result.samples.spread.median - self.floor[0].samples.spread.median

    @property
    def results(self) -> list[Result]:
        """The result of each way."""
        return [each.result for each in self.measured]

    @property
    def in_turns(self) -> bool:
        """Whether every way was measured in turns with zerocp."""
        return all(each.best for each in self.measured)

    def faults(self) -> list[str]:
        """Tensors that took another path than they should, or were copied too often or too rarely."""
        return [
            f"{self.case.name}, {result.way.name}: {fault}"
            for result in self.results
            for fault in faults_of(self.case, result)
        ]


def faults_of(case: Case, result: Result) -> Iterator[str]:
    """What the counters say against a result. Each way is checked differently."""
    steps = result.samples.steps
    if (shortest := min(result.samples.all)) < case.compute_s:
        yield f"a step took {duration(shortest)}, less than it computes"
    if result.way.protocol == STOCK:
        if (moved := result.samples.carried_bytes) < case.nbytes:
            yield f"a step moved only {size(moved)} over loopback"
        return
    paths = result.timed.paths
    if result.way == RPC:
        if (asked := paths.tensors["rpc"]) < steps * case.tensors:
            yield f"only {asked / steps:.4g} tensors of a step were asked for"
        if over_grpc := result.timed.grpc_calls:
            yield f"{over_grpc} calls were made over gRPC"
        return
    yield from paths.avoidable()
    if paths.pushed_bytes() < steps * case.nbytes:
        yield f"a step moved only {size(paths.pushed_bytes() / steps)}"
    large = steps * case.large
    lent = result.timed.total("fetched", "in_place", "tensors")
    if unplanned := paths.tensors.total() - paths.tensors["static"]:
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


def run_model(logs: Path, cases: list[Case], ways: list[Way], quick: bool) -> Iterator[Row]:
    """Measure the cases of one model and number of workers."""
    model, workers = cases[0].model, cases[0].workers
    rows = [Row(case, []) for case in cases]
    for group in groups_of(model, workers, ways):
        with Team(logs) as team:
            clusters = [Cluster(team, way, ("worker",) * (workers + 1)) for way in (*group, LOCAL)]
            for cluster in clusters:
                cluster.wait()
            for number, row in enumerate(rows):
                steps, block = _steps(row.case, quick)
                build = row.case.build(verify=number == 0)
                before = [_processes(cluster) for cluster in clusters]
                *results, floor = measure(clusters, build, steps, block, _PATIENCE_S)
                row.floor.append(floor)
                after = [_processes(cluster) for cluster in clusters]
                best = next((result for result in results if result.way == ZERO), None)
                known = [result.way for result in row.results]
                for result, then, now in zip(results, before, after, strict=False):
                    if result.way in known:
                        continue
                    used = [end.since(start) for start, end in zip(then, now, strict=True)]
                    row.measured.append(Measured(result, used, best))
    for row in rows:
        row.measured.sort(key=lambda each: ways.index(each.result.way))
    yield from rows


def _steps(case: Case, quick: bool) -> tuple[int, int]:
    """The number of timed steps, and of steps in a turn; fewer if a step takes long."""
    block = 2 if case.nbytes > 300 * MIB or case.compute_s > 0.2 else 5
    return block * (3 if quick else 10), block


def _processes(cluster: Cluster) -> list[record.Process]:
    return [
        record.Process.of(facts["pid"], f"{cluster.way.name} task {index}")
        for index, facts in enumerate(cluster.ask_all("process"))
    ]


def records(row: Row) -> list[record.Result]:
    """The results for the record."""
    case = row.case
    parameters: dict[str, record.Parameter] = {
        "model": case.model.name,
        "workers": case.workers,
        "batch": case.batch,
        "compute_ms": case.compute_s * 1e3,
        "tensors": case.tensors,
        "step_bytes": case.nbytes,
        "every_byte_read": case.reads,
        "in_turns": row.in_turns,
    }
    floor = record.Result(
        SUITE,
        case.name,
        FLOOR,
        record.SECONDS,
        row.floor[0].samples.all,
        turns=row.floor[0].samples.turns,
        parameters=parameters,
    )
    target = case.model.target if case.compute_s == 0 and not case.reads else None
    return [
        record.Result(
            suite=SUITE,
            case=case.name,
            way=result.way.name,
            unit=record.SECONDS,
            samples=result.samples.all,
            turns=result.samples.turns,
            parameters={**parameters, "over_floor_s": row.over_floor(result)},
            processes=each.processes,
            rival=TCP.name if result.way == ZERO else "",
            target=target if result.way == ZERO else None,
        )
        for each in row.measured
        for result in [each.result]
    ] + [floor]


def table(rows: list[Row]) -> Table:
    """The step times, the ratio of each way to zerocp, and samples per second where there is a batch."""
    made = Table(title="Time of one step")
    for header in ("step", "way"):
        made.add_column(header)
    for header in (
        "median",
        "p10 .. p90",
        "zerocp is faster",
        "target",
        FLOOR,
        "over the floor",
        "samples/s",
        "a step",
    ):
        made.add_column(header, justify="right")
    for row in rows:
        alone = next((result for result in row.results if result.way == ZERO), None)
        for index, each in enumerate(row.measured):
            result, best = each.result, each.best or alone
            time = result.samples.spread
            last = index == len(row.measured) - 1
            batch = row.case.batch * row.case.workers
            made.add_row(
                row.case.name if index == 0 else "",
                result.way.name,
                duration(time.median),
                span(time),
                _ratio(result, best, each.best is not None),
                _target(row.case, result, best),
                duration(row.floor[0].samples.spread.median) if index == 0 else "",
                excess(row.over_floor(result)),
                f"{batch / time.median:.0f}" if batch else "",
                f"{row.case.tensors} tensors, {size(row.case.nbytes)}" if index == 0 else "",
                end_section=last,
            )
    return made


def _ratio(result: Result, best: Result | None, in_turns: bool) -> str:
    if best is None or result.way == ZERO:
        return ""
    if in_turns:
        return speedup(result, best)
    return f"{result.samples.spread.median / best.samples.spread.median:.3g}x"


def _target(case: Case, result: Result, best: Result | None) -> str:
    """The verdict for steps that only communicate."""
    wanted = {TCP.name: case.model.target, RPC.name: RPC_TARGET}.get(result.way.name)
    if wanted is None or best is None or case.compute_s or case.reads:
        return ""
    return verdict(result.samples.spread.median / best.samples.spread.median, wanted)


def plan_cases(
    model: Model, workers: int, compute_ms: Sequence[float], batches: Sequence[int], reads: bool
) -> list[Case]:
    """The cases of one model and number of workers."""
    cases = [Case(model, workers, each / 1e3, 0, reads) for each in compute_ms]
    return cases + [
        Case(model, workers, each * model.compute_ms / 1e3, each, reads) for each in batches
    ]


@click.command()
@quick_option("Make fewer steps, with one worker and without batches.")
@only_option(list(MODELS))
@click.option(
    "--way",
    "chosen",
    multiple=True,
    type=click.Choice(list(WAYS)),
    help="Measure this way; repeatable.",
)
@click.option(
    "--workers",
    multiple=True,
    type=click.IntRange(1, 16),
    help="Measure with so many workers; repeatable. [default: 1, 2, 3]",
)
@click.option(
    "--compute",
    multiple=True,
    type=click.FloatRange(0, 60000),
    help="Milliseconds that a step sleeps, in place of computing; repeatable. [default: 0]",
)
@click.option(
    "--batch",
    multiple=True,
    type=click.IntRange(1, 4096),
    help="Samples in a batch, which multiply the model's compute time; repeatable. [default: 1, 8, 32]",
)
@click.option("--read", "reads", is_flag=True, help="Read every byte that arrives, at both ends.")
@json_option
def main(
    quick: bool,
    only: tuple[str, ...],
    chosen: tuple[str, ...],
    workers: tuple[int, ...],
    compute: tuple[float, ...],
    batch: tuple[int, ...],
    reads: bool,
    json_file: Path | None,
) -> None:
    """Measure the paper's workloads in its four ways, in turns, on this machine.

    The exit status is 1 if a task fails, a value is wrong, or a tensor takes another path than it should. A
    missed target is shown in red but does not fail the run.
    """
    ways = [way for name, way in WAYS.items() if not chosen or name in chosen]
    if not compute and not batch:
        compute, batch = (0.0,), () if quick else (1, 8, 32)
    rows: list[Row] = []
    with benchmark("The paper's comparison", 180, quick, json_file) as (console, whole, logs):
        with console.status("starting clusters") as status:
            for model in [MODELS[name] for name in only or MODELS]:
                for count in workers or ((1,) if quick else (1, 2, 3)):
                    status.update(f"measuring {model.name}, {count} worker{'s' * (count > 1)}")
                    cases = plan_cases(model, count, compute, batch, reads)
                    rows += run_model(logs, cases, ways, quick)
        for row in rows:
            whole.results += records(row)
            whole.faults += row.faults()
        console.print(table(rows))
        if apart := sorted({row.case.model.name for row in rows if not row.in_turns}):
            console.print(f"Too little memory to take turns with zerocp: {', '.join(apart)}")


if __name__ == "__main__":
    main()
