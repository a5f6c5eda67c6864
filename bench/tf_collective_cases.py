# SPDX-License-Identifier: Apache-2.0
"""The cases of bench_collectives.py. Nothing here imports TensorFlow."""

from __future__ import annotations

from dataclasses import dataclass

KIB, MIB = 1024, 1024 * 1024
# Square matrix of the training step: 2048 * 2048 * 4 bytes of gradients.
HIDDEN = 2048


@dataclass(frozen=True)
class Case:
    """`count` all-reduces of `bytes` each in one function, or a training step (`training`).

    `target`: how many times as fast as stock gRPC it should be with two workers. `steps` are timed in a
    full run, in turns of `block`.
    """

    name: str
    bytes: int
    count: int
    target: float
    steps: int
    block: int
    training: bool = False


CASES = [
    Case("all-reduce 4 KB", 4 * KIB, 1, 1.2, 800, 40),
    Case("all-reduce 256 KB", 256 * KIB, 1, 1.5, 800, 40),
    Case("all-reduce 4 MB", 4 * MIB, 1, 5, 300, 15),
    Case("all-reduce 64 MB", 64 * MIB, 1, 18, 60, 3),
    Case("50 all-reduces of 4 KB", 4 * KIB, 50, 3, 100, 5),
    Case("training, 17 MB of gradients", 4 * HIDDEN * HIDDEN, 1, 3, 100, 5, training=True),
]
NAMES = [case.name for case in CASES]
# A quick run makes this part of the steps.
FULL = 5
