# SPDX-License-Identifier: Apache-2.0
"""The cases of bench_tensorflow.py. This module does not import TensorFlow."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from math import prod
from typing import Any

# An environment variable: this process has all tasks, so that nothing is remote.
ALONE = "RDMATENSOR_BENCH_ALONE"

KIB = 1 << 10
MIB = 1 << 20
# For tensors whose number of rows is unknown to the graph: the size of a row, and the bound in the plan.
ROW_BYTES = 4 * KIB
MOST_ROWS = 16 * MIB // ROW_BYTES

# A full run makes this many times the steps of a quick run.
FULL = 4


@dataclass(frozen=True)
class Case:
    """One kind of step.

    In each step, `count` float32 tensors of `nbytes` bytes travel from one task to the other. The consumer
    takes one element of each ("slice") or reads all elements ("read"). The source is a variable, a variable
    whose number of rows the graph does not know ("rows unknown"), or a NumPy array that the step is fed with
    ("fed"). With `push`, tensors go from the client's task to the other one, otherwise to the client's task.
    An "echo" is fed at the other task, which adds one to every element and returns all of them.

    With a plan tensors take `path`; with None they travel inside messages. A quick run times `steps` steps on
    each cluster, in turns of `block`, and leaves the case out if `quick` is false. `target` is the speedup
    over gRPC that we want.
    """

    name: str
    count: int
    nbytes: int
    steps: int
    block: int
    target: float | None = None
    consumer: str = "slice"
    source: str = "variable"
    push: bool = False
    quick: bool = True
    path: str | None = "static"

    @property
    def step_bytes(self) -> int:
        """Bytes that travel in one step."""
        return self.count * self.nbytes * (2 if self.consumer == "echo" else 1)

    @property
    def build(self) -> dict[str, Any]:
        """The command that builds the step."""
        return {"command": "transfer", **asdict(self)}


TRANSFERS = (
    Case("1 x 1 KiB", 1, KIB, steps=200, block=10),
    Case("1 x 1 MiB", 1, MIB, steps=200, block=10),
    Case("1 x 16 MiB", 1, 16 * MIB, steps=100, block=5),
    Case("1 x 64 MiB", 1, 64 * MIB, steps=50, block=5, target=50),
    Case("1 x 256 MiB", 1, 256 * MIB, steps=20, block=5, target=100),
    Case("1 x 1 GiB", 1, 1 << 30, steps=3, block=1, quick=False),
    Case("1 x 64 MiB, all read", 1, 64 * MIB, steps=50, block=5, consumer="read"),
    Case("1 x 16 MiB, pushed", 1, 16 * MIB, steps=100, block=5, push=True),
    Case(
        "1 x 16 MiB, rows unknown",
        1,
        16 * MIB,
        steps=100,
        block=5,
        source="rows unknown",
        path="bounded",
    ),
    Case("1 x 16 MiB, fed", 1, 16 * MIB, steps=100, block=5, source="fed", push=True),
    Case(
        "1 x 16 MiB, fed and fetched",
        1,
        16 * MIB,
        steps=50,
        block=5,
        target=8,
        consumer="echo",
        source="fed",
        push=True,
        path=None,
    ),
    Case("100 x 1 MiB", 100, MIB, steps=50, block=5, target=40),
    Case("100 x 64 KiB", 100, 64 * KIB, steps=200, block=10, target=7),
    Case("100 x 4 KiB", 100, 4 * KIB, steps=200, block=10, target=5),
    Case("1000 x 1 KiB", 1000, KIB, steps=100, block=5, target=12),
)


# Of a perceptron: weights and biases, from the first layer to the last.
TRAINING_SHAPES = [(64, 2048), (2048,), (2048, 2048), (2048,), (2048, 10), (10,)]


@dataclass(frozen=True)
class TrainingCase:
    """Training steps with 17 MB of variables and as many gradients, on batches of `batch` images."""

    name: str
    batch: int
    steps: int = 100
    block: int = 5
    target: float | None = None
    path: str = "static"
    # The worker receives the variables and sends gradients of the same size back.
    step_bytes: int = 2 * 4 * sum(prod(shape) for shape in TRAINING_SHAPES)

    @property
    def build(self) -> dict[str, Any]:
        """The command that builds the step."""
        return {"command": "training", "batch": self.batch}


# A larger batch needs more arithmetic for the same communication. The target is for the smallest batch; the
# other case shows what remains of the speedup in a step that computes for longer.
TRAININGS = (
    TrainingCase("training step, batch 1", batch=1, target=2.5),
    TrainingCase("training step, batch 32", batch=32),
)


@dataclass(frozen=True)
class StepCase:
    """A step as users of TensorFlow 2 write it, with a parameter server, a worker and a chief.

    "coordinator": a ClusterCoordinator schedules a function that reads `count` variables of `nbytes` bytes
    from the parameter server, and subtracts a part of them there; the chief fetches a scalar. "eager": the
    chief adds two tensors of `nbytes` bytes on the worker and brings the sum back; one is NumPy's if `fed`.
    """

    name: str
    kind: str
    count: int
    nbytes: int
    target: float
    fed: bool = False
    steps: int = 100
    block: int = 10
    path: str = ""

    @property
    def step_bytes(self) -> int:
        """Bytes that a step moves at least."""
        return self.count * self.nbytes * (2 if self.kind == "coordinator" or self.fed else 1)

    @property
    def build(self) -> dict[str, Any]:
        """The command that builds the step."""
        about = {"count": self.count, "nbytes": self.nbytes, "fed": self.fed}
        return {"command": self.kind, **about}


STEPS = (
    StepCase("coordinator, 8 variables of 1 KiB", "coordinator", 8, KIB, target=3),
    StepCase("coordinator, 17 MB", "coordinator", 8, 17 * MIB // 8, target=6, block=5),
    StepCase("eager addition", "eager", 1, 4, target=3),
    StepCase("eager addition, 4 MiB fed", "eager", 1, 4 * MIB, target=8, fed=True),
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
    **{case.name: case.target for case in (*TRANSFERS, *TRAININGS, *STEPS)},
    UNUSED: None,
}
