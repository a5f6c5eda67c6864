# SPDX-License-Identifier: Apache-2.0
"""Waits, each of which ends."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

import rdmatensor

# "At once" on a machine that is busy with other things. What it is to be told from takes more than a minute.
AT_ONCE = 40.0
# For what hangs: when all is well, nothing takes so long, however busy the machine is.
PATIENCE = 60.0
LOOK_S = 0.02


def until(
    wrong: str | Callable[[], str], holds: Callable[..., object], seconds: float = PATIENCE
) -> None:
    """Waits until `holds()` is true; fails the test with the words `wrong`, or what it returns, if that takes
    too long."""
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            raise AssertionError(f"{wrong() if callable(wrong) else wrong}, after {seconds:g} s")
        time.sleep(LOOK_S)


def stays(holds: Callable[[], bool], seconds: float = 0.2) -> bool:
    """Whether `holds()` is true for so long."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if not holds():
            return False
        time.sleep(LOOK_S / 2)
    return True


def until_settled(wrong: str, measure: Callable[..., list[int]], quiet: float = 0.5) -> None:
    """Waits until all numbers are above zero, and have been the same for so long."""
    seen: list[int] = []
    since = 0.0

    def settled() -> bool:
        nonlocal seen, since
        if (now := measure()) != seen:
            seen, since = now, time.monotonic()
        return min(seen) > 0 and time.monotonic() - since > quiet

    until(wrong, settled)


def lost(action: Callable[..., Any]) -> bool:
    """Whether the action ends with ConnectionLost."""
    try:
        action()
    except rdmatensor.ConnectionLost:
        return True
    return False


def until_it_ends(child: int, seconds: float = PATIENCE) -> bool:
    """Waits for a forked child, which is killed if it hangs: whether it ended by itself."""
    end = time.monotonic() + seconds
    while os.waitpid(child, os.WNOHANG) == (0, 0):
        if time.monotonic() > end:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return False
        time.sleep(LOOK_S / 2)
    return True
