# SPDX-License-Identifier: Apache-2.0
"""Time-outs, and waiting for the C library in threads."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from .._ffi import lib
from ..config import get_int
from ..errors import UsageError

DEADLINE: int = lib.RDT_ERR_DEADLINE
IN_PROGRESS: int = lib.RDT_IN_PROGRESS
_LONGEST_MS = 2**31 - 1
# A wait returns to Python this often, so that Ctrl-C and close() act before its deadline.
_SLICE_MS = 100


def milliseconds(timeout: float | None) -> int:
    """Convert seconds for the C library. None is the setting DEADLINE_MS."""
    if timeout is None:
        return int(lib.RDT_TIMEOUT_DEFAULT)
    # What most give.
    if timeout.__class__ is float and 0.0 <= timeout < _LONGEST_MS / 1000:
        return math.ceil(timeout * 1000)
    try:
        given = -1.0 if isinstance(timeout, bool | str | bytes) else float(timeout)
    except (TypeError, ValueError, OverflowError):
        given = -1.0
    if not given >= 0:
        raise UsageError(f"timeout is {timeout!r}: give seconds >= 0, or None for DEADLINE_MS")
    timeout = given
    return _LONGEST_MS if math.isinf(timeout) else min(math.ceil(timeout * 1000), _LONGEST_MS)


def seconds(timeout: float | None) -> float:
    """Return the time-out for event loops, with DEADLINE_MS for None."""
    left = milliseconds(timeout)
    return (get_int("DEADLINE_MS") if left < 0 else left) / 1000


def wait_in_slices(
    wait: Callable[[int], int], timeout: float | None, stopped: Callable[[], bool] | None = None
) -> int:
    """Call `wait(milliseconds)` until it returns something other than DEADLINE, or time is up.

    Returns the last status, which is IN_PROGRESS only if `timeout` is 0. Ends early if `stopped()` is true.
    """
    left = milliseconds(timeout)
    if left < 0:
        left = get_int("DEADLINE_MS")
    if left <= _SLICE_MS and stopped is None:
        return wait(left)
    end = time.monotonic() + left / 1000
    while True:
        status = wait(min(left, _SLICE_MS))
        if status != DEADLINE:
            return status
        left = math.ceil((end - time.monotonic()) * 1000)
        if left <= 0 or (stopped is not None and stopped()):
            return status
