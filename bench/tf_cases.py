# SPDX-License-Identifier: Apache-2.0
"""What bench_tensorflow.py measures: the cases, free of TensorFlow."""

from __future__ import annotations

from dataclasses import dataclass

KB = 1 << 10
MB = 1 << 20
# Of tensors of which the graph does not know how many rows they have, and the most that the plan is told of.
ROW_BYTES = 4 * KB
MOST_ROWS = 16 * MB // ROW_BYTES

# A full run takes this many times the steps of a quick one.
FULL = 4


@dataclass(frozen=True)
class Case:
    """One kind of step.

    `count` tensors of `nbytes` bytes (float32) travel in each step from one task to the other, which takes
    one element of each ("slice") or reads all of it ("read"). They are variables of the other task
    ("variable"), or such of which the graph does not know how many rows they have ("rows unknown"), or
    memory of NumPy that the step is fed with ("fed"). `push`: they go from the task whose process has the
    client, else to it. `path` is what they take where there is a plan. `steps` are timed on each cluster in
    a quick run, in turns of `block`, if `quick` says that it has them at all. `target` is the speed-up over
    gRPC that we are after.
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
    path: str = "static"

    @property
    def step_bytes(self) -> int:
        """Bytes of variables that travel in one step."""
        return self.count * self.nbytes


TRANSFERS = (
    Case("1 x 1 KB", 1, KB, steps=200, block=10),
    Case("1 x 1 MB", 1, MB, steps=200, block=10),
    Case("1 x 16 MB", 1, 16 * MB, steps=100, block=5),
    Case("1 x 64 MB", 1, 64 * MB, steps=50, block=5, target=50),
    Case("1 x 256 MB", 1, 256 * MB, steps=20, block=5, target=100),
    Case("1 x 1 GB", 1, 1 << 30, steps=3, block=1, quick=False),
    Case("1 x 64 MB, all read", 1, 64 * MB, steps=50, block=5, consumer="read"),
    Case("1 x 16 MB, pushed", 1, 16 * MB, steps=100, block=5, push=True),
    Case(
        "1 x 16 MB, rows unknown",
        1,
        16 * MB,
        steps=100,
        block=5,
        source="rows unknown",
        path="bounded",
    ),
    Case("1 x 16 MB, fed", 1, 16 * MB, steps=100, block=5, source="fed", push=True),
    Case("100 x 1 MB", 100, MB, steps=50, block=5, target=40),
    Case("100 x 64 KB", 100, 64 * KB, steps=200, block=10, target=7),
    Case("100 x 4 KB", 100, 4 * KB, steps=200, block=10, target=5),
    Case("1000 x 1 KB", 1000, KB, steps=100, block=5, target=12),
)


@dataclass(frozen=True)
class TrainingCase:
    """Steps of training with 17 MB of variables, and as many gradients, on batches of `batch` images."""

    name: str
    batch: int
    steps: int = 100
    block: int = 5
    target: float | None = None


TRAINING_HIDDEN = 2048

# The larger the batch, the more arithmetic the same communication hides behind: the target is for the
# case with the least, the other shows what is left of it in a step that computes for longer.
TRAININGS = (
    TrainingCase("training step, batch 1", batch=1, target=2.5),
    TrainingCase("training step, batch 32", batch=32),
)

UNUSED_NAME = "plugin unused"
UNUSED_STEPS = 120
UNUSED_BLOCK = 10
UNUSED_BATCH = 32

NAMES = (*(case.name for case in (*TRANSFERS, *TRAININGS)), UNUSED_NAME)


def names(quick: bool) -> list[str]:
    """Of the cases of a run."""
    left_out = {case.name for case in TRANSFERS if quick and not case.quick}
    return [name for name in NAMES if name not in left_out]
