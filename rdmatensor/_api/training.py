# SPDX-License-Identifier: Apache-2.0
"""Read what the operations of rdmatensor.train cost in this process, without TensorFlow."""

from __future__ import annotations

import ctypes
import json
from typing import TypedDict

from .plugin import find_loaded, text_of

_LIBRARIES = "librdmatensor_ops_*.so"  # one per minor version of TensorFlow


class OperationCosts(TypedDict):
    """All operations of one name. Times are seconds, added up."""

    operations: int
    failed: int
    bytes: int
    """Of this process's operands."""
    seconds: float
    """From the start here to the end."""
    longest_seconds: float
    waited_seconds: float
    """From the start here to the first message of the member whose first message came last."""


class LateCosts(TypedDict):
    """Operations in which one member's first message came last."""

    operations: int
    waited_seconds: float


class TrainStats(TypedDict):
    """The result of `rdmatensor.train.statistics`."""

    rank: int
    size: int
    operations: dict[str, OperationCosts]
    """By name, such as "gradients 1 of 3 of adam"."""
    late: list[LateCosts]
    """By rank."""
    busy_seconds: float
    """While any operation was under way."""
    exposed_seconds: float
    """The part after the last operation had started, when no more gradients were being computed."""
    waited_seconds: float
    sent_bytes: int
    """What this process sent, over any transport."""
    copied_bytes: int
    """What the group had to copy because it lay in no region."""


def stats() -> TrainStats | None:
    """Return the costs since the group was joined; None if this process is in none. Thread-safe."""
    library = find_loaded(_LIBRARIES)
    if library is None:
        return None
    function = library.rdt_tf_training_json
    function.restype = ctypes.c_size_t
    function.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
    text = text_of(lambda out, size: int(function(out, size)))
    found: TrainStats | None = json.loads(text) if text else None
    return found
