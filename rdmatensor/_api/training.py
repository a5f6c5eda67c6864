# SPDX-License-Identifier: Apache-2.0
"""Tell what the operations of rdmatensor.train cost in this process, without TensorFlow."""

from __future__ import annotations

import ctypes
import json
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypedDict

from .._ffi import ffi, lib
from ..errors import RdmaError
from .collective import KINDS
from .plugin import find_loaded, text_of

if TYPE_CHECKING:
    from ..group import Group

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


class Costs:
    """Count what the operations of a group cost that run from Python, as OperationStats does in C++.

    Thread-safe. A started operation counts as ended when a caller first sees that it has.
    """

    def __init__(self, group: Group) -> None:
        self._group = group
        self._lock = threading.Lock()
        self._operations: dict[str, OperationCosts] = {}
        self._late: list[LateCosts] = [
            {"operations": 0, "waited_seconds": 0.0} for _ in range(group.size)
        ]
        self._under_way = 0
        self._first = self._last = 0.0  # starts since nothing was under way
        self._busy = self._exposed = 0.0

    def run(self, handle: Any, call: Any, local: Any, target: Any, count: int) -> int:
        """Run a call as C's rdt_python_run does, and count it. Return its status."""
        given = call.report
        end = self.begin(call, local, target)
        try:
            status: int = lib.rdt_python_run(handle, call, local, target, count)
        finally:
            call.report = given
        end(status != 0)
        return status

    def begin(self, call: Any, local: Any, target: Any) -> Callable[[bool], None]:
        """Count a call that starts now. Return what counts its end once, and takes whether it failed."""
        text = ffi.string(call.detail).decode(errors="replace") if call.detail else ""
        name = text.partition("\n")[0] or _KINDS[call.kind]
        size = len(local or target)
        report = call.report or ffi.new("rdt_collective_report *")
        call.report = report
        begun = time.perf_counter()
        with self._lock:
            self._first = self._first if self._under_way else begun
            self._last = begun
            self._under_way += 1

        ended = False

        def end(failed: bool) -> None:
            nonlocal ended
            with self._lock:
                if not ended:
                    ended = True
                    self._end(name, size, begun, report, failed)

        return end

    def _end(self, name: str, size: int, begun: float, report: Any, failed: bool) -> None:
        """Count the end of a call. The caller holds the lock."""
        now = time.perf_counter()
        self._under_way -= 1
        if not self._under_way:
            self._busy += now - self._first
            self._exposed += now - self._last
        if len(self._operations) >= _MOST_NAMES and name not in self._operations:
            name = "others"
        costs = self._operations.setdefault(name, _nothing())
        if failed:
            costs["failed"] += 1
            return
        waited = report.waited_ns * 1e-9
        costs["operations"] += 1
        costs["bytes"] += size
        costs["seconds"] += now - begun
        costs["longest_seconds"] = max(costs["longest_seconds"], now - begun)
        costs["waited_seconds"] += waited
        if waited and report.last < len(self._late):
            self._late[report.last]["operations"] += 1
            self._late[report.last]["waited_seconds"] += waited

    def stats(self) -> TrainStats | None:
        """Return what was counted; None if the group is closed, or the process forked."""
        try:
            info = self._group.info
        except RdmaError:
            return None
        with self._lock:
            operations = {name: costs.copy() for name, costs in self._operations.items()}
            return {
                "rank": info.rank,
                "size": info.size,
                "operations": operations,
                "late": [each.copy() for each in self._late],
                "busy_seconds": self._busy,
                "exposed_seconds": self._exposed,
                "waited_seconds": sum(each["waited_seconds"] for each in operations.values()),
                "sent_bytes": sum(info.bytes.values()),
                "copied_bytes": info.copies,
            }


_KINDS = {number: name for name, number in KINDS.items()}
# Programs may make up names for ever; what comes later counts together.
_MOST_NAMES = 256
_shown: Costs | None = None


def _nothing() -> OperationCosts:
    return {
        "operations": 0,
        "failed": 0,
        "bytes": 0,
        "seconds": 0.0,
        "longest_seconds": 0.0,
        "waited_seconds": 0.0,
    }


def count(group: Group) -> None:
    """Count the operations of a group from now on, and let stats() show them, unless it shows another one."""
    global _shown
    if group._calls.costs is None and (_shown is None or _shown.stats() is None):
        group._calls.costs = _shown = Costs(group)


def no_group() -> Group | None:
    """Return that there is no process group of torch."""
    return None


# Returns the group of torch's default process group; rdmatensor.torch replaces it.
default_group: Callable[[], Group | None] = no_group


def stats() -> TrainStats | None:
    """Return the costs since the group was joined; None if this process is in none. Thread-safe."""
    counted = None if _shown is None else _shown.stats()
    if counted is not None:
        return counted
    library = find_loaded(_LIBRARIES)
    if library is None:
        return None
    function = library.rdt_tf_training_json
    function.restype = ctypes.c_size_t
    function.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
    text = text_of(lambda out, size: int(function(out, size)))
    found: TrainStats | None = json.loads(text) if text else None
    return found
