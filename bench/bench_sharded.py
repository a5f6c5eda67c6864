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
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np

import sharded_member
from graph_analyzer.parallel import balance, layers, timeline
from graph_analyzer.report.cost import Network
from members import Members, ask, await_ready, started
from options import console, deliver, json_option, quick_option
from rdmatensor import Unsupported
from rdmatensor.bench import record
from rdmatensor.topology import Link, Member, Topology
from rdmatensor.topology.emulate import emulated

MEMBER = Path(__file__).with_name("sharded_member.py")
COMPUTE = 0.6
# How long the communication of a step takes, in units of the computation.
WIRES = (0.25, 0.5, 1.0, 4.0)
LESS_IN_MEMORY = 2  # 33 million weights
BOUND = "longer of the two"
PREDICTED = "computed"


def _layers() -> list[layers.Layer]:
    """Those of the members."""
    return [
        layers.Layer(each.name, int(np.prod(shape)), each.inputs, each.positions)
        for each, shape in zip(layers.NETWORKS["vgg_a"](), sharded_member.shapes(), strict=True)
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
    with emulated(_star(members, rate)) as emulation:

        def place(rank: int) -> list[str]:
            own = f"RDMATENSOR_BIND_ADDRESS={emulation.addresses[rank]}"
            return emulation.command(rank, "env", own)

        settings["MASTER_ADDR"] = emulation.addresses[0]
        with started(MEMBER, members, settings, place=place) as processes:
            await_ready(processes)
            yield processes


def _ask(processes: Members, **order: Any) -> list[dict[str, Any]]:
    return ask(processes, order)


def _slowest(answers: list[dict[str, Any]]) -> list[float]:
    return [max(each) for each in zip(*(answer["seconds"] for answer in answers), strict=True)]


def steps(members: int, wire: float, count: int) -> list[record.Result]:
    rate = _rate(members, wire)
    with _linked(members, rate) as processes:
        answers = {
            "computation": _ask(processes, way="alone", compute=COMPUTE, steps=count),
            "communication": _ask(processes, way="sharded", compute=0, steps=count),
            "sharded": _ask(processes, way="sharded", compute=COMPUTE, steps=count),
            "ahead": _ask(processes, way="ahead", compute=COMPUTE, steps=count),
            "all-reduce": _ask(processes, way="all-reduce", compute=COMPUTE, steps=count),
        }
    sums = {each["sum"] for way in ("sharded", "ahead", "all-reduce") for each in answers[way]}
    if max(sums) - min(sums) > 1e-3 * abs(max(sums)):
        raise click.ClickException(f"the ways end with other weights: {sums}")
    times = {way: _slowest(each) for way, each in answers.items()}
    # A step ends before its weights are there, so only steps together tell what one takes.
    times["ahead"] = [float(np.mean(times["ahead"]))]
    bound = max(np.median(times["computation"]), np.median(times["communication"]))
    times[BOUND] = [float(bound)]
    network = Network(bandwidth=rate)
    every = list(layers.NETWORKS["vgg_a"]())
    pace = timeline.by_speed(every, 3 * sum(each.flops for each in every) / COMPUTE)
    shares = balance.all_data(_layers(), members, members)
    times[PREDICTED] = [timeline.step_seconds(shares, pace, members, members, network, False)]
    return [
        record.Result(
            f"{members} processes, emulated links of {rate / 1e6:.3g} MB/s",
            f"step, communication {wire:g} x",
            way,
            record.SECONDS,
            samples,
            parameters={"compute_s": COMPUTE, "rate": rate},
            rival=BOUND if way == "ahead" else "",
            target=1 / 1.1 if way == "ahead" else None,
        )
        for way, samples in times.items()
    ]


def memory(members: int) -> list[record.Result]:
    """What training adds to the memory of a process: variables, state, and what operations keep."""
    found = []
    for way in ("sharded", "all-reduce"):
        with started(MEMBER, members) as processes:
            await_ready(processes)
            answers = _ask(processes, way=way, compute=0, steps=2, less=LESS_IN_MEMORY)
        for what in ("state", "resident"):
            values = [float(each[what]) for each in answers]
            found.append(record.Result(f"{members} processes", f"{what} memory", way, "B", values))
    return found


@click.command(help=__doc__)
@click.option("--members", "sizes", multiple=True, type=int, help="Repeatable; 2, 4 and 8.")
@quick_option("Two processes, few steps.")
@json_option
def main(sizes: tuple[int, ...], quick: bool, json_file: Path | None) -> None:
    run = record.Run("Sharded optimizer", record.Environment.here(transport="tcp"), quick)
    began = time.monotonic()
    with console().status("measuring"):
        for members in sizes or ((2,) if quick else (2, 4, 8)):
            run.results += memory(members)
            try:
                for wire in WIRES:
                    run.results += steps(members, wire, 3 if quick else 5)
            except Unsupported as error:
                case = f"{members} processes"
                run.missing.append(record.Missing(case, str(error), "run it as root"))
    run.finish(time.monotonic() - began)
    deliver(run, json_file)


if __name__ == "__main__":
    main()
