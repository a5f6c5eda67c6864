# SPDX-License-Identifier: Apache-2.0
"""A model whose dense layers are cut over 8 processes (split), against the whole one: memory, and throughput.

Memory is measured: VGG-A with its computation, in 8 processes that are split, and in 2 that are not. Of
throughput, 0.9 of linear is wanted: a step of 8 processes takes at most 1/0.9 of what it takes one process,
with the same batch in each. Steps are emulated: processes of this machine sleep instead of computing, and
their links sleep (FAULTS=rate=); what travels is an eighth, and so is the rate.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from harness import Bench, main
from team import members

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


def memory(bench: Bench, shape: Shape) -> None:
    found = {}
    for way, count in (("whole", 2), ("split", MEMBERS)):
        with members("split_member", count) as processes:
            order = {"pixels": shape.pixels, "classes": shape.classes, "batch": shape.memory_batch}
            found[way] = processes.ask("memory", 900.0, way=way, steps=3, **order)
    cases = {
        "variables, with SGD's momentum": lambda each: each["variables"],
        "resident after a step, shared pages in parts": lambda each: each["share"],
        "the same, above an empty process": lambda each: each["share"] - each["before"],
        "resident, most while training": lambda each: each["training"],
        "resident, most while the model is made": lambda each: each["making"],
    }
    suite = f"{shape.name}: bytes of a process of {MEMBERS}"
    for case, bytes_of in cases.items():
        for way, answers in found.items():
            values = [float(bytes_of(each)) for each in answers]
            bench.add(suite, case, way, values, "B")


def steps(bench: Bench, shape: Shape, rate: float, turns: int) -> None:
    order = {name: getattr(shape, name) for name in ("pixels", "classes", "batch", "speed")}
    faults = {"RDMATENSOR_FAULTS": f"rate={rate / 8 / LESS / 1e3:.0f}k,latency=20us"}
    with members("split_member", MEMBERS, faults) as processes:

        def measure(way: str) -> list[float]:
            ask = partial(processes.slowest, "steps", 900.0, way=way, count=1, **order)
            return [*ask(), *ask()]  # they begin together

        ways = ["alone", "split", "all-reduce"]
        for way in ways:
            measure(way)  # builds it
        bench.compare(
            f"{shape.name}: emulated, {MEMBERS} processes of {shape.speed / 1e12:g} Tflop/s",
            f"step, links of {rate / 1e9:g} Gbit/s",
            {way: lambda way=way: measure(way) for way in ways},
            turns,
            rivals={"split": ("alone", 0.9), "all-reduce": ("alone", None)},
        )


def measure(bench: Bench) -> None:
    for shape in SHAPES[:1] if bench.quick else SHAPES:
        memory(bench, shape)
        for rate in RATES[-1:] if bench.quick else RATES:
            steps(bench, shape, rate, 2 if bench.quick else 5)


if __name__ == "__main__":
    main(measure)
