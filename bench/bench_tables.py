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
from functools import partial

import numpy as np

from harness import Bench, Way, main
from team import Members, Team
from tf_cases import ROWS, WIDTH
from tf_measure import GRPC, Cluster

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


def block(members: Members, way: str, steps: int, share: int) -> list[float]:
    """Seconds per batch of some steps, at the slowest member; a step has `share` batches."""
    return [seconds / share for seconds in members.slowest("block", way=way, steps=steps)]


def compare(bench: Bench, members: Members, servers: Cluster, ids: int, link: str) -> None:
    """The ways of a case, in turns."""
    ways, size = [*PLAIN, *WAYS], len(members)
    made = members.ask("train", rows=ROWS, width=WIDTH, ids=ids, ways=ways, rule="sgd")[0]
    best = members.ask("choose", size=made)[0]
    servers.ask("embedding", tables=1, ids=ids, parts=2)
    steps, share = 2 * size, made[2] / ROWS
    asked: dict[str, Way] = {way: partial(block, members, way, steps, size) for way in ways}
    asked[SERVERS] = lambda: servers.ask("block", steps=steps)["seconds"]
    for call in asked.values():
        call()  # traces
    case = f"{ids:,} ids, share {share:.2g}"
    found = bench.compare(
        f"table of {ROWS:,} x {WIDTH}, {size} processes{link}",
        *(case, asked, 3 if bench.quick else 8),
    )
    servers.ask("close")
    for rival, target in TARGETS.items():
        suite = f"{CHOSEN} against {rival}{link}"
        bench.add(suite, case, rival, found[rival].all)
        bench.add(suite, case, CHOSEN, found[best].all, rival=(rival, target))


def choices(bench: Bench, members: Members, link: str) -> None:
    """The chosen and the fastest way of each case, and how often they are the same."""
    lost = []
    for rows, width, ids in GRID[::5] if bench.quick else GRID:
        made = members.ask("train", rows=rows, width=width, ids=ids, ways=WAYS, rule="adam")[0]
        choice = members.ask("choose", size=made)[0]
        names = {way: way + (" (chosen)" if way == choice else "") for way in WAYS}
        for way in WAYS:
            block(members, way, 3, 1)  # traces
        found = bench.compare(
            f"choice in a grid of cases{link}",
            f"{rows:,} x {width}, {ids:,} ids",
            {names[way]: lambda way=way: block(members, way, 5, 1) for way in WAYS},
            4 if bench.quick else 8,
        )
        times = {name: each.spread.median for name, each in found.items()}
        lost.append(times[names[choice]] / min(times.values()))
    for name, value in {
        "the fastest is chosen": lost.count(1) / len(lost),
        f"at most {EQUAL - 1:.0%} slower": sum(each <= EQUAL for each in lost) / len(lost),
        "time of the chosen over the fastest, mean": float(np.exp(np.mean(np.log(lost)))),
        "the same, at worst": max(lost),
    }.items():
        bench.add(f"choice in a grid of {len(lost)} cases{link}", name, CHOSEN, [value], "")


def measure(bench: Bench, members: int = 4, grid: bool = False, gbps: float = 0.0) -> None:
    link, settings = "", {}
    if gbps:
        link = f", emulated links of {gbps:g} Gbit/s"
        settings["RDMATENSOR_FAULTS"] = f"rate={gbps / 8 * 1e6:.0f}k,latency=20us"
    with Team() as team:
        processes = team.members("tables_member", members, settings)
        if grid:
            choices(bench, processes, link)
            return
        # A chief, its workers, and two parameter servers.
        jobs = ("ps", "ps", *("worker",) * members, "chief")
        servers = Cluster(team, GRPC, jobs, "tf_chief_task")
        servers.wait()
        for ids in IDS[:1] if bench.quick else IDS:
            compare(bench, processes, servers, ids, link)


if __name__ == "__main__":
    main(measure)
