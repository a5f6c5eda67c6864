# SPDX-License-Identifier: Apache-2.0
"""Training of real models on real data to a target loss, over stock gRPC and over grpc+rdma.

Both clusters start from the same variables, see the same batches and apply updates in the same order. So
their losses must be equal bit for bit, and only the times differ.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median

from harness import Bench, main, rotated
from team import Team
from tf_measure import FLOOR, GRPC, LOCAL, PLANNED, STOCK, Use, clusters_of

# The steps of a full run. The names are those of LEARNERS in tf_learners.py, which imports TensorFlow.
STEPS = {"digits CNN": 200, "word embedding": 400}
_BLOCK = 20


@dataclass
class Course:
    """One training. `seconds` and `losses` have an entry for each step, `held_out` for each block."""

    way: str
    wanted: float
    seconds: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    held_out: list[float] = field(default_factory=list)
    use: Use = field(default_factory=lambda: Use([]))

    def seconds_to_target(self) -> float | None:
        """The time until the held-out loss was as low as wanted, in whole blocks; None if it never was."""
        for block, loss in enumerate(self.held_out, 1):
            if loss <= self.wanted:
                return sum(self.seconds[: block * _BLOCK])
        return None


def train(bench: Bench, name: str, workers: int, steps: int) -> None:
    """Train in all ways, in turns of a block of steps."""
    with Team() as team:
        made = clusters_of(team, (GRPC, PLANNED, LOCAL), ("worker",) * (workers + 1))
        clusters = {cluster.way.name: cluster for cluster in made}
        courses = {}
        for way, cluster in clusters.items():
            built = cluster.ask("learner", name=name, workers=workers)
            courses[way] = Course(way, built["loss_wanted"])
            cluster.reset()
        for names in rotated(list(clusters), -(-steps // _BLOCK)):
            for way in names:
                answer = clusters[way].ask("learn", steps=_BLOCK)
                courses[way].seconds += answer["seconds"]
                courses[way].losses += answer["losses"]
                courses[way].held_out.append(answer["held_out"])
        for way, cluster in clusters.items():
            courses[way].use = cluster.use()
    bench.run.faults += faults_of(name, list(courses.values()))
    floor = median(courses[FLOOR].seconds)
    for course in courses.values():
        reached = course.seconds_to_target()
        series = {"step": course.seconds}
        if reached is not None:
            series[f"to a held-out loss of {course.wanted:g}"] = [reached]
        for what, values in series.items():
            bench.add(
                *("convergence", f"{name}, {what}", course.way, values),
                rival=("", None) if course.way in (STOCK, FLOOR) else (STOCK, None),
                over_floor_s=None if course.way == FLOOR else median(course.seconds) - floor,
            )


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
        found += [f"{name}: {fault}" for fault in course.use.avoidable()]
        if not course.use.sent("tensors")["static"]:
            found.append(f"{name}: nothing went to a planned place")
    return found


def _first_difference(one: Course, other: Course) -> int:
    pairs = enumerate(zip(one.losses, other.losses, strict=False))
    return next((step for step, (a, b) in pairs if a != b), len(one.losses))


def measure(bench: Bench, workers: int = 1, steps: int = 0) -> None:
    for name in bench.wanted(list(STEPS)):
        train(bench, name, workers, steps or STEPS[name])


if __name__ == "__main__":
    main(measure)
