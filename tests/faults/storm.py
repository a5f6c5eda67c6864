# SPDX-License-Identifier: Apache-2.0
"""Which faults an episode of chaos.py injects, by its seed."""

from __future__ import annotations

import random

# Wrapped from the start, but nothing happens.
CALM = "post=#1000000000"
SLOWING = ("delay", "credit", "stall", "call_delay")
ENDING = [
    "post",
    "fail",
    "drop",
    "break",
    "register",
    "map",
    "connect",
    "hang",
    "duplicate",
    "refuse",
    "call_break",
    "call_duplicate",
]


def faults(dice: random.Random, often: float) -> str:
    """A setting FAULTS: what slows operations down, and some of what ends them, each with a
    probability of up to `often`."""
    slowing = [
        f"{kind}={dice.uniform(0, 0.05):.4f}:{dice.randrange(1, 8)}ms"
        for kind in SLOWING
        if dice.random() < 0.7
    ]
    ends = [f"{kind}={dice.uniform(0, often):.5f}" for kind in ENDING if dice.random() < 0.5]
    return ",".join([f"seed={dice.randrange(1 << 30)}", *slowing, *ends])
