# SPDX-License-Identifier: Apache-2.0
"""What communication adds to a training step, beside torch's DDP and JAX; what small operations and a group
of one cost; and how much of a slow link hides behind the backward pass.

Each framework trains one matrix of 2048 x 2048, alone and in several processes. What its communication costs
is the difference to its own step alone, so its arithmetic does not count. All ways take turns.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

from harness import Bench, Way, in_turns, main
from rdmatensor._tools.launch import LARGE_PAGES
from team import Team, free_port
from training_member import LAYERS, OPERATIONS, WIDTH

OURS, KERAS, TORCH, JAX = "rdmatensor.train", "Keras 3 alone", "torch DDP, gloo", "JAX, gloo"
ON_TORCH, ON_JAX = "rdmatensor.train, on PyTorch", "JAX, rdmatensor"
FLOOR = "nothing remote"
RIVALS = {TORCH: "torch", JAX: "jax"}
# Programs of rdmatensor that need a framework, its rival there, and how much less communication shall add.
BESIDE = {
    OURS: ("keras", TORCH, 2.0),
    ON_TORCH: ("keras_torch", TORCH, 3.3),
    ON_JAX: ("jax_rdmatensor", JAX, 3.3),
}
BLOCK = 5
# The emulated link passes the gradients' bytes in this share of a step's computing time. Sums and copies
# add to that, so the all-reduces take about half as long as the backward pass.
WIRE_SHARE = 1 / 4


def start(
    bench: Bench, team: Team, program: str, size: int, settings: Mapping[str, str] = {}
) -> Way:
    """One program in `size` processes; a call gives the times of some steps, of the slowest process."""
    python = bench.rival_python if program in RIVALS.values() else sys.executable
    if program in (RIVALS[JAX], BESIDE[ON_JAX][0]):
        settings = {**LARGE_PAGES, **settings}
    members = team.members("training_member", size, settings, python, words=[program, free_port()])
    members.slowest("steps", count=1)  # builds it
    share = OPERATIONS if program in ("small", "unshared") else 1
    return lambda: [seconds / share for seconds in members.slowest("steps", count=BLOCK)]


def steps(bench: Bench, team: Team, workers: int, turns: int) -> None:
    programs = {name: module for name, module in RIVALS.items() if bench.has(name, module)}
    programs |= {
        name: program
        for name, (program, rival, _) in BESIDE.items()
        if name == OURS or rival in programs
    }
    alone = {name: start(bench, team, program, 1) for name, program in programs.items()}
    alone[KERAS] = start(bench, team, "plain", 1)
    both = {name: start(bench, team, program, workers) for name, program in programs.items()}
    calls = {("a process alone", name): call for name, call in alone.items()}
    calls |= {("together", name): call for name, call in both.items()}
    found = in_turns(calls, turns)  # type: ignore[type-var]
    suite = f"training step, 17 MB of gradients, {workers} processes"
    for (case, name), samples in found.items():
        bench.add(suite, case, name, samples.all)
    for name in both:
        _, rival, wanted = BESIDE.get(name, ("", "", None))
        pairs = zip(
            found["together", name].turns, found["a process alone", name].turns, strict=True
        )
        bench.add(
            *(suite, "what communication adds", name, [one - other for one, other in pairs]),
            rival=(rival, wanted) if rival in both else ("", None),
        )


def small(bench: Bench, team: Team, workers: int, turns: int) -> None:
    """The floor is what TensorFlow takes to run a function with 50 operations and results."""
    programs = {OURS: "small", FLOOR: "unshared"}
    ways = {name: start(bench, team, each, workers) for name, each in programs.items()}
    bench.compare(
        f"50 all-reduces of 4 KB in one function, {workers} processes", "each", ways, turns
    )


def overlap(bench: Bench, team: Team, workers: int, turns: int) -> None:
    """Emulated: the link sleeps, so that cores stay free."""
    computation = start(bench, team, "computation", workers)
    seconds = in_turns({"": computation}, 2)[""].spread.median
    size = LAYERS * WIDTH * WIDTH * 4
    rate = size * 2 * (workers - 1) / workers / (WIRE_SHARE * seconds)
    faults = {"RDMATENSOR_FAULTS": f"rate={rate:.0f}"}
    ways = {
        "computation alone": computation,
        "all-reduces alone": start(bench, team, "wire", workers, faults),
        "step": start(bench, team, "deep", workers, faults),
    }
    suite = (
        f"{LAYERS} layers, {size / 1e6:.1f} MB of gradients, {workers} processes, "
        f"emulated link of {rate / 1e6:.0f} MB/s"
    )
    found = bench.compare(suite, "overlap", ways, turns)
    alone, wire, step = (each.spread.median for each in found.values())
    bench.add(suite, "share of communication that is hidden", OURS, [1 - (step - alone) / wire], "")


CASES = {"steps": steps, "small": small, "overlap": overlap}


def measure(bench: Bench, workers: int = 2) -> None:
    for name in bench.wanted(list(CASES)):
        with Team() as team:
            CASES[name](bench, team, workers, 8 if bench.quick else 40)


if __name__ == "__main__":
    main(measure)
