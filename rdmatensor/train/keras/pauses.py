# SPDX-License-Identifier: Apache-2.0
"""Let processes agree, between two steps, to keep a backup, to stop, or to leave."""

from __future__ import annotations

import signal
import threading
import time
from datetime import timedelta
from typing import Any, NamedTuple

import numpy as np

from ...errors import UsageError
from ..backend.base import backend
from ..run.session import Session

# Seconds between two looks at what the others want.
_APART = 1.0


class Plan(NamedTuple):
    """The arguments of callbacks() that are about pauses."""

    every: int | timedelta | None = None
    """Batches or time between two backups."""
    limit: float | None = None
    """Seconds after which training stops."""
    preemptible: bool = False
    """Whether SIGTERM lets all processes keep a backup and leave."""

    def check(self, backs_up: bool) -> None:
        """Raise UsageError if the plan contradicts itself."""
        every = self.every.total_seconds() if isinstance(self.every, timedelta) else self.every
        if every is not None and (every <= 0 or not backs_up):
            raise UsageError(
                f"backup_every={self.every!r}: give backup=FOLDER too, and a number of batches or a "
                "timedelta above 0"
            )
        if self.limit is not None and self.limit <= 0:
            raise UsageError(f"time_limit is {self.limit}: give seconds above 0")


class Wish(NamedTuple):
    """The actions that all processes take after a step."""

    keep: bool = False
    stop: bool = False
    leave: bool = False
    end: bool = False
    """Whether a callback has ended training in one of them, perhaps because the model is of no use."""


class Pauses:
    """Periodic agreement on what each process wants, after the same steps in all of them.

    How many steps lie between two looks follows from the time that the slowest process needs for one.
    """

    def __init__(self, run: Session, plan: Plan) -> None:
        self._run, self._plan = run, plan
        self._asked = threading.Event()
        self._before: Any = None
        self._done = self._due = 0

    def begin(self) -> None:
        """Begin to count when fit begins. Catch SIGTERM in the main thread, if the plan says so."""
        self._done, self._due = 0, 1
        self._began = self._kept = self._looked = time.monotonic()
        self._seen = 0
        self._asked.clear()
        if self._plan.preemptible and threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGTERM, lambda *_: self._asked.set())

    def end(self, waits: bool) -> bool:
        """Stop looking when fit ends, or when the process leaves.

        Return whether a process was told to leave.
        """
        self.restore()
        told = np.array([self._asked.is_set()], np.int32)
        if waits and self._plan.preemptible:
            told = backend().all_reduce(self._run, told, "max", "whether to leave after training")
        return bool(int(told[0]))

    def restore(self) -> None:
        """Give SIGTERM back to the handler that it had before fit."""
        if self._before is not None:
            signal.signal(signal.SIGTERM, self._before)
            self._before = None

    def after(self, batches: int, waits: bool, watches: bool, ends: bool) -> Wish:
        """Return what all processes do after so many more batches.

        `watches` says that a callback may end training between two steps, in all processes alike, and `ends`
        that one has done so here.
        """
        before, self._done = self._done, self._done + batches
        every = self._plan.every
        counted = isinstance(every, int) and self._done // every > before // every
        looks = self._plan != Plan() or watches
        if not looks or not (counted or self._done >= self._due):
            return Wish()
        now = time.monotonic()
        late = isinstance(every, timedelta) and now - self._kept >= every.total_seconds()
        over = self._plan.limit is not None and now - self._began >= self._plan.limit
        per_step = (now - self._looked) / (self._done - self._seen)
        wishes = [counted or late, over, self._asked.is_set(), ends, per_step]
        mine = np.array(wishes, np.float64)
        if waits:
            mine = backend().all_reduce(self._run, mine, "max", "whether to stop after a step")
        keep, stop, leave, ended, slowest = (float(each) for each in mine)
        self._looked, self._seen = now, self._done
        self._due = self._done + max(1, int(_APART / max(slowest, 1e-6)))
        if keep or stop or leave:
            self._kept = now
        return Wish(bool(keep or stop or leave), bool(stop), bool(leave), bool(ended))
