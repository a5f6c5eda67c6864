# SPDX-License-Identifier: Apache-2.0
"""What bench_tensorflow.py measures: the cases, free of TensorFlow."""

from __future__ import annotations

from dataclasses import dataclass

KB = 1 << 10
MB = 1 << 20

# A full run takes this many times the steps of a quick one.
FULL = 4


@dataclass(frozen=True)
class Case:
    """One kind of step.

    `count` tensors of `nbytes` bytes (float32) travel in each step from variables of one task to the
    other, which takes one element of each ("slice") or reads all of it ("read"). `steps` are timed on
    each cluster in a quick run, in turns of `block`. `target` is the speed-up over gRPC that we are after.
    """

    name: str
    count: int
    nbytes: int
    steps: int
    block: int
    target: float | None = None
    consumer: str = "slice"

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
    Case("1 x 64 MB, all read", 1, 64 * MB, steps=50, block=5, consumer="read"),
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
