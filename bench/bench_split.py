# SPDX-License-Identifier: Apache-2.0
"""A model whose dense layers are cut over 8 processes (split), against the whole one: memory, and throughput.

Memory is measured: VGG-A with its computation, in 8 processes that are split, and in 2 that are not. Of
throughput, 0.9 of linear is wanted: a step of 8 processes takes at most 1/0.9 of what it takes one process,
with the same batch in each. Steps are emulated: processes of this machine sleep instead of computing, and
their links sleep (FAULTS=rate=); what travels is an eighth, and so is the rate.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import NamedTuple

import click

from members import ask, await_ready, started
from options import console, deliver, json_option, quick_option
from rdmatensor.bench import record
from rdmatensor.bench.turns import in_turns

MEMBER = Path(__file__).with_name("split_member.py")
MEMBERS, LESS = 8, 8


class Shape(NamedTuple):
    """A network, the examples of a process in a step, and the flop/s of the emulated device."""

    name: str
    pixels: int
    classes: int
    batch: int
    memory_batch: int
    speed: float


SHAPES = [
    Shape("VGG-A, CIFAR-10's shapes", 32, 10, 128, 32, 0.1e12),
    Shape("VGG-A, ImageNet's shapes", 224, 1000, 32, 1, 1e12),
]
# Of a link, in bit/s.
RATES = [2.5e9, 10e9]


def memory(shape: Shape) -> list[record.Result]:
    found = {}
    for way, members in (("whole", 2), ("split", MEMBERS)):
        with started(MEMBER, members) as processes:
            await_ready(processes)
            order = {"pixels": shape.pixels, "classes": shape.classes, "batch": shape.memory_batch}
            found[way] = ask(processes, {"act": "memory", "way": way, "steps": 3, **order})
    cases = {
        "variables, with SGD's momentum": lambda each: each["variables"],
        "resident after a step, shared pages in parts": lambda each: each["share"],
        "the same, above an empty process": lambda each: each["share"] - each["before"],
        "resident, most while training": lambda each: each["training"],
        "resident, most while the model is made": lambda each: each["making"],
    }
    return [
        record.Result(
            f"{shape.name}: bytes of a process of {MEMBERS}",
            case,
            way,
            "B",
            [float(bytes_of(each)) for each in answers],
            parameters={"batch": shape.memory_batch},
        )
        for case, bytes_of in cases.items()
        for way, answers in found.items()
    ]


def steps(shape: Shape, rate: float, members: int, turns: int) -> list[record.Result]:
    names = ("pixels", "classes", "batch", "speed")
    order = {"act": "steps"} | {name: getattr(shape, name) for name in names}
    faults = {"RDMATENSOR_FAULTS": f"rate={rate / 8 / LESS / 1e3:.0f}k,latency=20us"}
    with started(MEMBER, members, faults) as processes:
        await_ready(processes)

        def measure(way: str) -> list[float]:
            answers = ask(processes, {**order, "way": way, "steps": 2})
            return [max(each) for each in zip(*answers, strict=True)]

        ways = ["alone", "split", "all-reduce"]
        samples = in_turns({way: lambda way=way: measure(way) for way in ways}, turns)  # type: ignore
    return [
        record.Result(
            f"{shape.name}: emulated, {members} processes of {shape.speed / 1e12:g} Tflop/s",
            f"step, links of {rate / 1e9:g} Gbit/s",
            way,
            record.SECONDS,
            samples[way].all,
            turns=samples[way].turns,
            parameters={"batch": shape.batch, "less": LESS},
            rival="alone" if way != "alone" else "",
            target=0.9 if way == "split" else None,
        )
        for way in ways
    ]


@click.command(help=__doc__)
@click.option("--memory/--no-memory", "with_memory", default=True, help="Measure memory.")
@click.option("--steps/--no-steps", "with_steps", default=True, help="Measure steps.")
@quick_option("The small network, one rate, few steps.")
@json_option
def main(with_memory: bool, with_steps: bool, quick: bool, json_file: Path | None) -> None:
    run = record.Run("Split models", record.Environment.here(transport="shm"), quick)
    began = time.monotonic()
    shapes = SHAPES[:1] if quick else SHAPES
    with console().status("measuring"):
        for shape in shapes if with_memory else []:
            run.results += memory(shape)
        for shape in shapes if with_steps else []:
            for rate in RATES[-1:] if quick else RATES:
                run.results += steps(shape, rate, MEMBERS, 2 if quick else 5)
    run.finish(time.monotonic() - began)
    deliver(run, json_file)


if __name__ == "__main__":
    main()
