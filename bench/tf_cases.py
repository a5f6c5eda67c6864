# SPDX-License-Identifier: Apache-2.0
"""What is timed with TensorFlow: the form of all cases, and those of bench_tensorflow.py.

This module does not import TensorFlow.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from rdmatensor.units import binary_size

# An environment variable: this process has all tasks, so that nothing is remote.
ALONE = "RDMATENSOR_BENCH_ALONE"

# An environment variable: the library of the device that TensorFlow gets (programs.test_device).
DEVICE_LIBRARY = "TEST_DEVICE_LIBRARY"

KIB, MIB = 1 << 10, 1 << 20
# For tensors whose number of rows is unknown to the graph: the size of a row, and the bound in the plan.
ROW_BYTES = 4 * KIB
MOST_ROWS = 16 * MIB // ROW_BYTES
# Tables of embeddings.
ROWS, WIDTH = 100_000, 64


@dataclass(frozen=True)
class Case:
    """One kind of step, which moves at least `step_bytes` bytes.

    `build` is the command that builds it, with its fields. A run times `steps` steps on each cluster, in
    turns of `block`; a quick one leaves the case out if `quick` is false. `target` is the wanted speedup over
    the first cluster. With a plan tensors take `path`, "" if that is not checked; None if they are inside
    messages.
    """

    name: str
    build: Mapping[str, Any]
    step_bytes: int
    steps: int = 100
    block: int = 5
    target: float | None = None
    path: str | None = ""
    quick: bool = True


def transfer(
    count: int,
    nbytes: int,
    what: str = "",
    *,
    steps: int = 100,
    block: int = 5,
    target: float | None = None,
    consumer: str = "slice",
    source: str = "variable",
    push: bool = False,
    path: str | None = "static",
    quick: bool = True,
) -> Case:
    """In each step, `count` float32 tensors of `nbytes` bytes travel from one task to the other.

    The consumer takes one element of each ("slice") or reads all elements ("read"). The source is a variable,
    a variable whose number of rows the graph does not know ("rows unknown"), or a NumPy array that the step
    is fed with ("fed"). With `push`, tensors go from the client's task to the other one, otherwise to the
    client's task. An "echo" is fed at the other task, which adds one to every element and returns all.
    """
    name = f"{count} x {binary_size(nbytes)}{what}"
    about = {"name": name, "count": count, "nbytes": nbytes}
    about |= {"consumer": consumer, "source": source, "push": push}
    moved = count * nbytes * (2 if consumer == "echo" else 1)
    build = {"command": "transfer", **about}
    return Case(name, build, moved, steps, block, target, path, quick)


TRANSFERS = (
    transfer(1, KIB, steps=200, block=10),
    transfer(1, MIB, steps=200, block=10),
    transfer(1, 16 * MIB),
    transfer(1, 64 * MIB, steps=50, target=50),
    transfer(1, 256 * MIB, steps=20, target=100),
    transfer(1, 1 << 30, steps=3, block=1, quick=False),
    transfer(1, 64 * MIB, ", all read", steps=50, consumer="read"),
    transfer(1, 16 * MIB, ", pushed", push=True),
    transfer(1, 16 * MIB, ", rows unknown", source="rows unknown", path="bounded"),
    transfer(1, 16 * MIB, ", fed", source="fed", push=True),
    transfer(
        *(1, 16 * MIB, ", fed and fetched"),
        steps=50,
        target=8,
        consumer="echo",
        source="fed",
        push=True,
        path=None,
    ),
    transfer(100, MIB, steps=50, target=40),
    transfer(100, 64 * KIB, steps=200, block=10, target=7),
    transfer(100, 4 * KIB, steps=200, block=10, target=5),
    transfer(1000, KIB, target=12),
)


def between_devices(count: int, nbytes: int, target: float | None = None) -> Case:
    """In each step, `count` tensors travel from the memory of one task's device to that of the other's."""
    name = f"{count} x {binary_size(nbytes)}, between devices"
    build = {"command": "devices", "name": name, "count": count, "nbytes": nbytes}
    return Case(name, build, count * nbytes, target=target, path="static", quick=False)


# Compared with the two copies that such a step needs: it may take 1.3 times as long.
DEVICES = (between_devices(1, 64 * MIB, target=0.77), between_devices(100, 64 * KIB))

# Of a perceptron: weights and biases, from the first layer to the last.
TRAINING_SHAPES = [(64, 2048), (2048,), (2048, 2048), (2048,), (2048, 10), (10,)]


def training(batch: int, target: float | None = None) -> Case:
    """Training steps on `batch` images: a worker receives 17 MB of variables, and sends as many gradients.

    A larger batch needs more arithmetic for the same communication.
    """
    moved = 2 * 4 * sum(prod(shape) for shape in TRAINING_SHAPES)
    build = {"command": "training", "batch": batch}
    return Case(f"training step, batch {batch}", build, moved, target=target, path="static")


TRAININGS = (training(1, target=2.5), training(32))


def coordinated(what: str, count: int, nbytes: int, target: float, block: int) -> Case:
    """A function that reads `count` variables and subtracts a part of them at the parameter server."""
    build = {"command": "coordinator", "count": count, "nbytes": nbytes}
    return Case(f"coordinator, {what}", build, 2 * count * nbytes, block=block, target=target)


def eager(what: str, nbytes: int, fed: bool, target: float) -> Case:
    """Two tensors are added on the worker and the sum comes back; one of them is NumPy's if `fed`."""
    build = {"command": "eager", "nbytes": nbytes, "fed": fed}
    moved = nbytes * (2 if fed else 1)
    return Case(f"eager addition{what}", build, moved, block=10, target=target)


# Steps as users of TensorFlow 2 write them, with a parameter server, a worker and a chief.
STEPS = (
    coordinated("8 variables of 1 KiB", 8, KIB, target=3, block=10),
    coordinated("17 MB", 8, 17 * MIB // 8, target=6, block=5),
    eager("", 4, fed=False, target=3),
    eager(", 4 MiB fed", 4 * MIB, fed=True, target=8),
)

# The speedups that we want over tcp between two network namespaces of this machine.
OVER_TCP: dict[str, float | None] = {
    "1 x 64 MiB": 3,
    "1 x 256 MiB": 4,
    "100 x 1 MiB": 3.5,
    "100 x 64 KiB": 5,
    "1000 x 1 KiB": 7,
}
# At 1 Gbit/s the network is what takes time, and nothing may be slower than gRPC.
OVER_GIGABIT: dict[str, float | None] = dict.fromkeys(
    (
        "1 x 1 KiB",
        "1 x 1 MiB",
        "1 x 16 MiB",
        "100 x 64 KiB",
        "1000 x 1 KiB",
        "training step, batch 1",
    ),
    1,
)
UNUSED = "plugin unused"
TARGETS: dict[str, float | None] = {
    **{case.name: case.target for case in (*TRANSFERS, *DEVICES, *TRAININGS, *STEPS)},
    UNUSED: None,
}
