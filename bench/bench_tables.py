# SPDX-License-Identifier: Apache-2.0
"""Tables of embeddings in several processes, in the ways of parallelize(), and as programs do it today.

Processes of this machine look up rows of a table of 100,000 x 64 and apply SGD to them; each has its own
batch. Beside them, as many workers of ParameterServerStrategy over stock gRPC compute the same, with the
table in two parts on two servers; they do not wait for each other. Compared is the time per batch. --grid
compares what parallelize() would choose with the fastest way, in cases of other sizes. --gbps emulates links
between the processes: transfers sleep as if each process had one. Stock gRPC keeps the speed of loopback.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import click

from options import benchmark, json_option, quick_option
from programs import free_port
from rdmatensor.bench import record
from rdmatensor.bench.turns import Distribution
from team import SILENCE_S, Team
from tf_embedding_task import ROWS, WIDTH
from tf_measure import GRPC, Cluster, interleave

PLAIN = ("dense, TensorFlow's update", "all-gather, TensorFlow's update")
WAYS = ("dense", "gather", "owners")
SERVERS = "parameter servers, grpc"
CHOSEN = "chosen"
IDS = (1024, 4096, 10_000)
# What parallelize() should be faster than, and how many times.
TARGETS = {SERVERS: 2.8, PLAIN[1]: 1.6, PLAIN[0]: 6.0}
GRID = list(itertools.product((64, 2048, 20_000, 100_000), (8, 64), (64, 1024, 8192)))
# Ways that differ by less are equally good.
EQUAL = 1.1


class Servers(Cluster):
    """A chief, its workers, and two parameter servers."""

    def __init__(self, team: Team, workers: int) -> None:
        jobs = ("ps", "ps", *("worker",) * workers, "chief")
        super().__init__(team, GRPC, jobs, "tf_embedding_task")

    @property
    def client(self) -> Any:
        """The chief."""
        return self.tasks[-1]


class Members:
    """Processes of tables_member.py."""

    def __init__(self, team: Team, size: int, gbps: float | None) -> None:
        self._team = team
        place = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "TF_CPP_MIN_LOG_LEVEL": "2"}
        place |= {"MASTER_PORT": str(free_port()), "RDMATENSOR_LOG_LEVEL": "error", "TF_CONFIG": ""}
        if gbps:
            place["RDMATENSOR_FAULTS"] = f"rate={gbps / 8 * 1e6:.0f}k,latency=20us"
        program = str(Path(__file__).with_name("tables_member.py"))
        self._tasks = [
            team.start(f"rank {rank}", [program], place | {"RANK": str(rank)})
            for rank in range(size)
        ]
        for task in self._tasks:
            team.wait(task, "ready", SILENCE_S)

    def ask(self, command: str, patience: float = SILENCE_S, **fields: Any) -> dict[str, Any]:
        """Rank 0's answer, with the times of the slowest process."""
        for task in self._tasks:
            task.send(command, **fields)
        answers = [self._team.wait(task, command, patience) for task in self._tasks]
        if "seconds" in answers[0]:
            each = zip(*(answer["seconds"] for answer in answers), strict=True)
            answers[0]["seconds"] = [max(times) for times in each]
        return answers[0]

    def block(self, way: str, _: str, patience: float, steps: int) -> dict[str, Any]:
        """As a cluster answers."""
        return self.ask("block", patience, way=way, steps=steps)


def compare(
    members: Members, servers: Servers, size: int, ids: int, turns: int
) -> list[record.Result]:
    """The ways of a case, in turns."""
    ways = [*PLAIN, *WAYS]
    made = members.ask("train", rows=ROWS, width=WIDTH, ids=ids, ways=ways, rule="sgd")
    choice = members.ask("choose", size=made["size"])["way"]
    servers.ask("train", tables=1, ids=ids, parts=2)
    asked: dict[str, Any] = {way: partial(members.block, way) for way in ways}
    asked[SERVERS] = servers.ask
    steps = 2 * size
    interleave(asked, steps, steps)  # traces
    samples = interleave(asked, steps * turns, steps)
    servers.ask("close")
    share = made["size"][2] / ROWS
    case = f"{ids:,} ids, share {share:.2g}"
    found = []
    for way, each in samples.items():
        per_batch = 1 if way == SERVERS else size  # a step of ours has a batch of each process
        found.append(
            record.Result(
                f"table of {ROWS:,} x {WIDTH}, {size} processes",
                case,
                way,
                record.SECONDS,
                [second / per_batch for second in each.all],
                turns=[second / per_batch for second in each.turns],
                parameters={"share": share},
            )
        )
    (best,) = (each for each in found if each.way == choice)
    for rival, target in TARGETS.items():
        (other,) = (each for each in found if each.way == rival)
        pair = [other, best]
        found += [
            record.Result(
                f"{CHOSEN} against {rival}",
                case,
                CHOSEN if each is best else rival,
                each.unit,
                each.samples,
                turns=each.turns,
                parameters={"way": each.way},
                rival=rival if each is best else "",
                target=target if each is best else None,
            )
            for each in pair
        ]
    return found


def grid(members: Members, turns: int, quick: bool) -> tuple[list[record.Result], str]:
    """The chosen and the fastest way of each case, and how often they are the same."""
    found, right, good, lost = [], 0, 0, []
    cases = GRID[::5] if quick else GRID
    for rows, width, ids in cases:
        made = members.ask("train", rows=rows, width=width, ids=ids, ways=WAYS, rule="adam")
        asked = {way: partial(members.block, way) for way in WAYS}
        interleave(asked, 3, 3)  # traces
        samples = interleave(asked, 5 * turns, 5)
        times = {way: Distribution.of(each.all).median for way, each in samples.items()}
        choice = members.ask("choose", size=made["size"])["way"]
        ratio = times[choice] / min(times.values())
        right += ratio == 1
        good += ratio <= EQUAL
        lost.append(ratio)
        found += [
            record.Result(
                "choice in a grid of cases",
                f"{rows:,} x {width}, {ids:,} ids",
                way + (" (chosen)" if way == choice else ""),
                record.SECONDS,
                each.all,
                turns=each.turns,
            )
            for way, each in samples.items()
        ]
    mean = math.exp(sum(map(math.log, lost)) / len(lost))
    text = (
        f"the choice is the fastest way in {right} of {len(cases)} cases, and within "
        f"{EQUAL - 1:.0%} of it in {good}; on average it takes {mean:.3f} times as long, at worst "
        f"{max(lost):.2f}"
    )
    return found, text


@click.command(help=__doc__)
@click.option("--members", "size", default=4, show_default=True, help="Start so many processes.")
@click.option("--grid", "with_grid", is_flag=True, help="Measure the grid of cases instead.")
@click.option(
    "--gbps", type=click.FloatRange(0, min_open=True), help="Emulate links of so many Gbit/s."
)
@quick_option("Fewer turns, and fewer cases of the grid.")
@json_option
def main(
    size: int, with_grid: bool, gbps: float | None, quick: bool, json_file: Path | None
) -> None:
    with benchmark("Tables of embeddings", 150, quick, json_file) as (console, run, logs):
        with Team(logs) as team:
            members = Members(team, size, gbps)
            if with_grid:
                run.results, text = grid(members, 4 if quick else 8, quick)
                console.print(text)
            else:
                servers = Servers(team, size)
                servers.wait()
                for ids in IDS[:1] if quick else IDS:
                    run.results += compare(members, servers, size, ids, 3 if quick else 8)
        if gbps:
            link = f"emulated links of {gbps:g} Gbit/s"
            run.results = [replace(each, suite=f"{each.suite}, {link}") for each in run.results]
        for each in run.results:
            spread = each.spread
            console.print(
                f"{each.suite}  {each.case}  {each.way:34}  {spread.median * 1e3:8.3f} ms "
                f"({spread.p10 * 1e3:.3f} .. {spread.p90 * 1e3:.3f})",
                highlight=False,
            )


if __name__ == "__main__":
    main()
