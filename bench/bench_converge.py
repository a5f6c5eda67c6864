# SPDX-License-Identifier: Apache-2.0
"""Training of real models on real data to a target loss, over stock gRPC and over grpc+rdma.

Both clusters start from the same variables, see the same batches and apply updates in the same order. So
their losses must be equal bit for bit, and only the times differ.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import accumulate
from statistics import median

from harness import Bench, main, rotated
from record import LOSS, SECONDS
from team import Team
from tf_measure import FLOOR, GRPC, LOCAL, STATIC, STOCK, Cluster, Use

# The steps of a full run. The names are those of LEARNERS in converge_graphs.py, which imports TensorFlow.
STEPS = {"digits CNN": 200, "word embedding": 400}
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


def train(bench: Bench, name: str, workers: int, steps: int) -> None:
    """Train in all ways, in turns of a block of steps."""
    with Team() as team:
        clusters = {way.name: Cluster(team, way, ("worker",) * (workers + 1)) for way in WAYS}
        courses = {}
        for way, cluster in clusters.items():
            cluster.wait()
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
    record(bench, name, workers, list(courses.values()))


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
            found += [f"{name}: {fault}" for fault in course.use.avoidable()]
            if not course.use.sent("tensors")["static"]:
                found.append(f"{name}: nothing went to a planned place")
    return found


def _first_difference(one: Course, other: Course) -> int:
    pairs = enumerate(zip(one.losses, other.losses, strict=False))
    return next((step for step, (a, b) in pairs if a != b), len(one.losses))


def record(bench: Bench, name: str, workers: int, courses: list[Course]) -> None:
    """Step times, the time to the target, and losses with their times, whose entries belong together."""
    floor = next(median(course.seconds) for course in courses if course.way == FLOOR)
    for course in courses:
        ends, reached = list(accumulate(course.seconds)), course.seconds_to_target()
        series = [("step", SECONDS, course.seconds)]
        if reached is not None:
            series.append((f"to a held-out loss of {course.wanted:g}", SECONDS, [reached]))
        for what, times, losses in (
            ("loss", ends, course.losses),
            ("held-out loss", ends[_BLOCK - 1 :: _BLOCK], course.held_out),
        ):
            series += [(what, SECONDS, times), (what, LOSS, losses)]
        for what, unit, values in series:
            compared = course.way not in (STOCK, FLOOR) and not what.endswith("loss")
            bench.add(
                *(SUITE, f"{name}, {what}", course.way, values, unit),
                rival=(STOCK, None) if compared else ("", None),
                workers=workers,
                steps_to_target=course.reached(),
                over_floor_s=None if course.way == FLOOR else median(course.seconds) - floor,
            )


def measure(bench: Bench, workers: int = 1, steps: int = 0) -> None:
    for name in bench.wanted(list(STEPS)):
        train(bench, name, workers, steps or STEPS[name])


if __name__ == "__main__":
    main(measure)
