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
    "duplicate",
    "refuse",
    "call_break",
    "call_duplicate",
]
# What happens while connections are made.
CONNECTING = ["register", "map", "connect", "hang", "destroy"]


def memory(dice: random.Random) -> str:
    """What holds as long as devices are open, to be added to each setting: memory is used in place where it
    can be, or is moved, or is moved over an emulated link."""
    link = f",rate={dice.randrange(50, 1000)}M,latency={dice.randrange(10, 200)}us"
    return dice.choice(["", ",unmapped=1", link])


def corruption(dice: random.Random, often: float) -> str:
    """What corrupts bytes that have checksums, to be added to a setting. Notifications have none in their
    heads."""
    kinds = ("corrupt_write", "corrupt_read")
    return "".join(f",{kind}={dice.uniform(0, often):.5f}" for kind in kinds if dice.random() < 0.5)


def faults(dice: random.Random, often: float, connecting: float | None = None) -> str:
    """A setting FAULTS: what slows operations down, and some of what ends them, each with a
    probability of up to `often`; and of up to `connecting`, if given, while connections are made."""
    slowing = [
        f"{kind}={dice.uniform(0, 0.05):.4f}:{dice.randrange(1, 8)}ms"
        for kind in SLOWING
        if dice.random() < 0.7
    ]
    limits = dict.fromkeys(ENDING, often) | dict.fromkeys(CONNECTING, connecting or often)
    ends = [
        f"{kind}={dice.uniform(0, limit):.5f}"
        for kind, limit in limits.items()
        if dice.random() < 0.5
    ]
    return ",".join([f"seed={dice.randrange(1 << 30)}", *slowing, *ends])
