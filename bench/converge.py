# SPDX-License-Identifier: Apache-2.0
"""Training to a target over stock gRPC and over grpc+rdma: real models, real data, the same losses.

Both clusters start from the same variables, see the same batches and apply updates in the same order, so
their losses must be the same bits; what differs is the time.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import Path

import click
from rich.table import Table

from rdmatensor.bench import record
from rdmatensor.bench.record import LOSS
from rdmatensor.demo.cluster import SILENCE_S
from rdmatensor.demo.launch import Team
from rdmatensor.demo.paths import STOCK
from rdmatensor.demo.timing import duration
from tf_measure import GRPC, STATIC, Cluster, Use
from tf_run import benchmark, json_option

# Names of LEARNERS in converge_graphs.py, which needs TensorFlow, and how many steps a full run makes.
STEPS = {"digits CNN": 200, "character LSTM": 600, "word embedding": 400}
# It mostly computes, and takes longest.
_SLOW = "character LSTM"
SUITE = "convergence"
_BLOCK = 20
WAYS = (GRPC, replace(STATIC, name="grpc+rdma"))


@dataclass
class Course:
    """How training went in one way. `seconds` and `losses` are of single steps, `held_out` of blocks."""

    way: str
    wanted: float
    seconds: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    held_out: list[float] = field(default_factory=list)
    use: Use = field(default_factory=lambda: Use([]))

    def reached(self) -> int | None:
        """Steps to the end of the block after which the held-out loss was as low as wanted, if any."""
        for block, loss in enumerate(self.held_out, 1):
            if loss <= self.wanted:
                return block * _BLOCK
        return None

    def seconds_to_target(self) -> float | None:
        """The same in seconds of steps."""
        steps = self.reached()
        return None if steps is None else sum(self.seconds[:steps])


def train(team: Team, name: str, workers: int, steps: int) -> list[Course]:
    """Train in all ways, a block of steps in one, then in the next."""
    clusters = [Cluster(team, way, workers + 1) for way in WAYS]
    courses = []
    for cluster in clusters:
        cluster.wait()
        built = team.ask(cluster.client, "learner", SILENCE_S, name=name, workers=workers)
        courses.append(Course(cluster.way.name, built["loss_wanted"]))
        cluster.reset()
    for turn in range(-(-steps // _BLOCK)):
        pairs = list(zip(clusters, courses, strict=True))
        for cluster, course in pairs[:: -1 if turn % 2 else 1]:
            answer = team.ask(cluster.client, "learn", SILENCE_S, steps=_BLOCK)
            course.seconds += answer["seconds"]
            course.losses += answer["losses"]
            course.held_out.append(answer["held_out"])
    for cluster, course in zip(clusters, courses, strict=True):
        course.use = cluster.use()
    return courses


def faults_of(name: str, courses: list[Course]) -> list[str]:
    """What makes a comparison worthless."""
    first, *others = courses
    found = [
        f"{name}: the losses over {course.way} differ from those over {first.way} "
        f"from step {_first_difference(first, course)} on"
        for course in others
        if (course.losses, course.held_out) != (first.losses, first.held_out)
    ]
    for course in courses:
        if course.way != STOCK:
            found += [f"{name}: {fault}" for fault in course.use.paths.avoidable()]
            if not course.use.paths.tensors["static"]:
                found.append(f"{name}: nothing went to a planned place")
    return found


def _first_difference(one: Course, other: Course) -> int:
    pairs = enumerate(zip(one.losses, other.losses, strict=False))
    return next((step for step, (a, b) in pairs if a != b), len(one.losses))


def records(name: str, workers: int, courses: list[Course]) -> list[record.Result]:
    """Step times, the time to the target, and losses with their times, which are curves: the
    same indices belong together."""
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
                rival="" if course.way == STOCK or what.endswith("loss") else STOCK,
            )
            for what, unit, values in series
        ]
    return results


def table(runs: dict[str, list[Course]]) -> Table:
    """Time to target."""
    made = Table(title="Time to a loss on held-out data")
    for header in ("model", "over"):
        made.add_column(header)
    for header in ("a step", "loss wanted", "steps", "time", "faster", "last loss"):
        made.add_column(header, justify="right")
    for name, courses in runs.items():
        for course in courses:
            times = [each.seconds_to_target() for each in (courses[0], course)]
            stock, own = times
            made.add_row(
                name if course is courses[0] else "",
                course.way,
                duration(sorted(course.seconds)[len(course.seconds) // 2]),
                f"{course.wanted:g}",
                str(course.reached() or "not reached"),
                duration(own) if own else "-",
                f"{stock / own:.3g}x" if stock and own and course is not courses[0] else "",
                f"{course.held_out[-1]:.4g}",
                end_section=course is courses[-1],
            )
    return made


def plot(runs: dict[str, list[Course]], path: Path) -> None:
    """Loss against the seconds that steps took, a panel for each model; the format is that of the name."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, len(runs), figsize=(4.5 * len(runs), 3.2), squeeze=False)
    for panel, (name, courses) in zip(panels[0], runs.items(), strict=True):
        for course in courses:
            times = [sum(course.seconds[: (n + 1) * _BLOCK]) for n in range(len(course.held_out))]
            panel.plot(times, course.held_out, label=course.way)
        panel.axhline(courses[0].wanted, color="grey", linestyle=":", linewidth=1)
        panel.set(title=name, xlabel="seconds in steps", ylabel="loss, held out")
        panel.legend()
    figure.tight_layout()
    figure.savefig(path)
    pyplot.close(figure)


@click.command()
@click.option("--quick", is_flag=True, help=f"Without the {_SLOW}.")
@click.option("--only", multiple=True, type=click.Choice(list(STEPS)), help="May be repeated.")
@click.option("--workers", default=1, show_default=True, type=click.IntRange(1, 4))
@click.option("--steps", type=click.IntRange(1, 100000), help="Of each model.")
@json_option
@click.option("--plot", "picture", type=click.Path(path_type=Path, dir_okay=False), help="SVG.")
def main(
    quick: bool,
    only: tuple[str, ...],
    workers: int,
    steps: int | None,
    json_file: Path | None,
    picture: Path | None,
) -> None:
    """Train models over stock gRPC and over grpc+rdma, in turns, and compare time and losses.

    Exits with 1 if a task fails or the losses differ; a target that is not reached does not fail the run.
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
        if picture:
            plot(runs, picture)


if __name__ == "__main__":
    main()
