# SPDX-License-Identifier: Apache-2.0
"""A sharded optimizer over links of a given rate, against what bounds a step; and its memory.

Emulated: the processes are on this machine, and their layers sleep, which have the shapes of VGG-A with an
eighth of the features. Each process has a network namespace and a cable to a switch, which the kernel limits;
it needs root. A step should take no longer than 1.1 times the computation alone or the communication alone,
whichever is longer. Both are measured in the same run. The column "computed" is what `rdmatensor plan
--parallel` expects.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial

import numpy as np

from graph_analyzer.parallel import balance, layers, timeline
from graph_analyzer.report.cost import Network
from harness import Bench, main
from rdmatensor import Unsupported
from rdmatensor.topology import Link, Member, Topology
from rdmatensor.topology.emulate import emulated
from team import Failed, Members, Team

COMPUTE = 0.6
# How long the communication of a step takes, in units of the computation.
WIRES = (0.25, 0.5, 1.0, 4.0)
LESS = 8
LESS_IN_MEMORY = 2  # 33 million weights
BOUND = "longer of the two"
PREDICTED = "computed"


def shapes(less: int = LESS) -> list[tuple[int, ...]]:
    """The shapes of the weights of VGG-A's layers, with so many times fewer features."""
    found = []
    for layer in layers.NETWORKS["vgg_a"]():
        *kernel, ifm, ofm = layer.kernel
        found.append((*kernel, max(ifm // less, 1), max(ofm // less, 1)))
    return found


def _layers() -> list[layers.Layer]:
    """Those of the members."""
    return [
        layers.Layer(each.name, int(np.prod(shape)), each.inputs, each.positions)
        for each, shape in zip(layers.NETWORKS["vgg_a"](), shapes(), strict=True)
    ]


def _rate(members: int, wire: float) -> float:
    """The bandwidth, in bytes per second, of a link that a step occupies for so many computations."""
    weights = sum(each.weights for each in _layers())
    return 2 * 4 * weights * (members - 1) / members / (wire * COMPUTE)


def _star(members: int, rate: float) -> Topology:
    ends = [(f"m{i}", "switch") for i in range(members)]
    links = tuple(Link(*way, rate) for each in ends for way in (each, each[::-1]))
    return Topology("star", tuple(Member(each) for each, _ in ends), links, ("switch",))


@contextlib.contextmanager
def _linked(members: int, rate: float) -> Iterator[Members]:
    """Processes with a link each, of so many bytes per second in each direction."""
    settings = {"RDMATENSOR_TRANSPORTS": "tcp", "RDMATENSOR_INSECURE": "1"}
    with emulated(_star(members, rate)) as emulation, Team() as team:

        def place(rank: int) -> list[str]:
            own = f"RDMATENSOR_BIND_ADDRESS={emulation.addresses[rank]}"
            return emulation.command(rank, "env", own)

        settings["MASTER_ADDR"] = emulation.addresses[0]
        yield team.members("sharded_member", members, settings, place=place)


def steps(bench: Bench, members: int, wire: float, count: int) -> None:
    rate = _rate(members, wire)
    with _linked(members, rate) as processes:
        ask = partial(processes.ask, "train", 600.0, steps=count)
        answers = {
            "computation": ask(way="alone", compute=COMPUTE),
            "communication": ask(way="sharded", compute=0),
            "sharded": ask(way="sharded", compute=COMPUTE),
            "ahead": ask(way="ahead", compute=COMPUTE),
            "all-reduce": ask(way="all-reduce", compute=COMPUTE),
        }
    sums = {each["sum"] for way in ("sharded", "ahead", "all-reduce") for each in answers[way]}
    if max(sums) - min(sums) > 1e-3 * abs(max(sums)):
        raise Failed(f"the ways end with other weights: {sums}")
    times = {
        way: [max(each) for each in zip(*(answer["seconds"] for answer in several), strict=True)]
        for way, several in answers.items()
    }
    # A step ends before its weights are there, so only steps together tell what one takes.
    times["ahead"] = [float(np.mean(times["ahead"]))]
    bound = max(np.median(times["computation"]), np.median(times["communication"]))
    times[BOUND] = [float(bound)]
    network = Network(bandwidth=rate)
    every = list(layers.NETWORKS["vgg_a"]())
    pace = timeline.by_speed(every, 3 * sum(each.flops for each in every) / COMPUTE)
    shares = balance.all_data(_layers(), members, members)
    times[PREDICTED] = [timeline.step_seconds(shares, pace, members, members, network, False)]
    suite = f"{members} processes, emulated links of {rate / 1e6:.3g} MB/s"
    for way, samples in times.items():
        rival = (BOUND, 1 / 1.1) if way == "ahead" else ("", None)
        case = f"step, communication {wire:g} x"
        bench.add(suite, case, way, samples, rival=rival)


def memory(bench: Bench, members: int) -> None:
    """What training adds to the memory of a process: variables, state, and what operations keep."""
    for way in ("sharded", "all-reduce"):
        with Team() as team:
            processes = team.members("sharded_member", members)
            answers = processes.ask("train", way=way, compute=0, steps=2, less=LESS_IN_MEMORY)
        for what in ("state", "resident"):
            values = [float(each[what]) for each in answers]
            bench.add(f"{members} processes", f"{what} memory", way, values, "B")


def measure(bench: Bench, members: tuple[int, ...] = (2, 4, 8)) -> None:
    for size in members[:1] if bench.quick else members:
        memory(bench, size)
        try:
            for wire in WIRES:
                steps(bench, size, wire, 3 if bench.quick else 5)
        except Unsupported as error:
            bench.missing(f"{size} processes", str(error), "run it as root")


if __name__ == "__main__":
    main(measure)
