# SPDX-License-Identifier: Apache-2.0
"""Training of real models on real data to a target loss, over stock gRPC and over grpc+rdma.

Both clusters start from the same variables, see the same batches and apply updates in the same order. So
their losses must be equal bit for bit, and only the times differ.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import Path
from statistics import median

import click
from rich.table import Table

from options import benchmark, json_option, only_option, quick_option
from paths import STOCK
from rdmatensor.bench import record
from rdmatensor.bench.record import LOSS
from rdmatensor.bench.report import excess
from rdmatensor.bench.turns import rotated
from rdmatensor.units import duration
from team import Team
from tf_measure import FLOOR, GRPC, LOCAL, STATIC, Cluster, Use

# The steps of a full run. The names are those of LEARNERS in converge_graphs.py, which imports TensorFlow.
STEPS = {"digits CNN": 200, "character LSTM": 600, "word embedding": 400}
# This one mostly computes, and takes longest.
_SLOW = "character LSTM"
SUITE = "convergence"
_BLOCK = 20
WAYS = (GRPC, replace(STATIC, name="grpc+rdma"), LOCAL)


@dataclass
class Course:
    """One training. `seconds` and `losses` have an entry for each step, `held_out` for each block."""

    way: str
    wanted: float
    seconds: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    held_out: list[float] = field(default_factory=list)
    use: Use = field(default_factory=lambda: Use([]))

    def reached(self) -> int | None:
        """The number of steps after which the held-out loss was as low as wanted; None if it never was."""
        for block, loss in enumerate(self.held_out, 1):
            if loss <= self.wanted:
                return block * _BLOCK
        return None

    def seconds_to_target(self) -> float | None:
        """The time of these steps."""
        steps = self.reached()
        return None if steps is None else sum(self.seconds[:steps])


def train(team: Team, name: str, workers: int, steps: int) -> list[Course]:
    """Train in all ways, in turns of a block of steps."""
    clusters = [Cluster(team, way, ("worker",) * (workers + 1)) for way in WAYS]
    courses = {}
    for cluster in clusters:
        cluster.wait()
        built = cluster.ask("learner", name=name, workers=workers)
        courses[cluster.way.name] = Course(cluster.way.name, built["loss_wanted"])
        cluster.reset()
    asked = {cluster.way.name: cluster.ask for cluster in clusters}
    for names in rotated(list(asked), -(-steps // _BLOCK)):
        for way in names:
            answer = asked[way]("learn", steps=_BLOCK)
            courses[way].seconds += answer["seconds"]
            courses[way].losses += answer["losses"]
            courses[way].held_out.append(answer["held_out"])
    for cluster in clusters:
        courses[cluster.way.name].use = cluster.use()
    return list(courses.values())


def faults_of(name: str, courses: list[Course]) -> list[str]:
    """Reasons why the comparison is not valid."""
    # Where nothing is remote, TensorFlow fuses other operations, so the last bits may differ.
    first, *others = [course for course in courses if course.way != FLOOR]
    found = [
        f"{name}: the losses over {course.way} differ from those over {first.way} "
        f"from step {_first_difference(first, course)} on"
        for course in others
        if (course.losses, course.held_out) != (first.losses, first.held_out)
    ]
    for course in others:
        if course.way != STOCK:
            found += [f"{name}: {fault}" for fault in course.use.paths.avoidable()]
            if not course.use.paths.tensors["static"]:
                found.append(f"{name}: nothing went to a planned place")
    return found


def _first_difference(one: Course, other: Course) -> int:
    pairs = enumerate(zip(one.losses, other.losses, strict=False))
    return next((step for step, (a, b) in pairs if a != b), len(one.losses))


def records(name: str, workers: int, courses: list[Course]) -> list[record.Result]:
    """The results for the record: step times, the time to the target, and losses with their times, which are
    curves whose entries belong together."""
    results = []
    for course in courses:
        ends = list(accumulate(course.seconds))
        reached = course.seconds_to_target()
        parameters: dict[str, record.Parameter] = {
            "model": name,
            "workers": workers,
            "loss_wanted": course.wanted,
            "steps_to_target": course.reached(),
            "held_out_every": _BLOCK,
        }
        if course.way != FLOOR:
            parameters["over_floor_s"] = over_floor(course, courses)
        series = [("step", record.SECONDS, course.seconds)]
        if reached is not None:
            series.append((f"to a held-out loss of {course.wanted:g}", record.SECONDS, [reached]))
        for what, times, losses in (
            ("loss", ends, course.losses),
            ("held-out loss", ends[_BLOCK - 1 :: _BLOCK], course.held_out),
        ):
            series += [(what, record.SECONDS, times), (what, LOSS, losses)]
        results += [
            record.Result(
                SUITE,
                f"{name}, {what}",
                course.way,
                unit,
                values,
                parameters=parameters,
                rival="" if course.way in (STOCK, FLOOR) or what.endswith("loss") else STOCK,
            )
            for what, unit, values in series
        ]
    return results


def over_floor(course: Course, courses: list[Course]) -> float:
    """The seconds that a step takes longer than the same step with nothing remote."""
    floor = next(each for each in courses if each.way == FLOOR)
    return median(course.seconds) - median(floor.seconds)


def table(runs: dict[str, list[Course]]) -> Table:
    """The table of times to the target."""
    made = Table(title="Time to a loss on held-out data")
    for header in ("model", "over"):
        made.add_column(header)
    for header in (
        "a step",
        "over the floor",
        "loss wanted",
        "steps",
        "time",
        "faster",
        "last loss",
    ):
        made.add_column(header, justify="right")
    for name, courses in runs.items():
        for course in courses:
            times = [each.seconds_to_target() for each in (courses[0], course)]
            stock, own = times
            made.add_row(
                name if course is courses[0] else "",
                course.way,
                duration(median(course.seconds)),
                "" if course.way == FLOOR else excess(over_floor(course, courses)),
                f"{course.wanted:g}",
                str(course.reached() or "not reached"),
                duration(own) if own else "-",
                f"{stock / own:.3g}x" if stock and own and course is not courses[0] else "",
                f"{course.held_out[-1]:.4g}",
                end_section=course is courses[-1],
            )
    return made


@click.command()
@quick_option(f"Leave out the {_SLOW}.")
@only_option(list(STEPS))
@click.option("--workers", default=1, show_default=True, type=click.IntRange(1, 4))
@click.option("--steps", type=click.IntRange(1, 100000), help="Train each model for so many steps.")
@json_option
def main(
    quick: bool,
    only: tuple[str, ...],
    workers: int,
    steps: int | None,
    json_file: Path | None,
) -> None:
    """Train models over stock gRPC and over grpc+rdma, in turns, and compare time and losses.

    The exit status is 1 if a task fails or the losses differ. A target that is not reached does not fail the
    run.
    """
    runs: dict[str, list[Course]] = {}
    with benchmark("Convergence", 120, quick, json_file) as (console, whole, logs):
        with console.status("starting clusters") as status:
            for name in only or [each for each in STEPS if not quick or each != _SLOW]:
                status.update(f"training the {name}")
                with Team(logs) as team:
                    runs[name] = train(team, name, workers, steps or STEPS[name])
                whole.faults += faults_of(name, runs[name])
                whole.results += records(name, workers, runs[name])
        console.print(table(runs))


if __name__ == "__main__":
    main()
