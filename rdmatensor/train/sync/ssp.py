# SPDX-License-Identifier: Apache-2.0
"""Stale synchronous training: a process may be ahead of the slowest one by a few steps."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

from ...errors import DeadlineExceeded, UsageError
from . import rules
from .base import Array
from .members import FINISHED
from .owned_shards import Owned, Strips

if TYPE_CHECKING:
    from ..run.membership import Membership

_PAUSE = 0.0002  # seconds between two looks at what others do without us


class SSP(Owned):
    """Send the change of each step to the owners of the model's strips, and read these.

    Ho et al. 2013. A process goes on as soon as nobody is more than `slack` steps behind, and then what it
    reads has all changes up to that step, and its own. The model moves by the mean of all changes. With slack
    0, nobody sends before all have read, so this is synchronous training. A process that dies is not waited
    for; its strip is no longer common.
    """

    def __init__(self, slack: int = 3) -> None:
        if slack < 0:
            raise UsageError(f"slack is {slack}: give a number of steps, 0 or more")
        self.slack = slack

    def begin(self, members: Membership, x: Array) -> int:
        """Share the model in strips, and begin to apply what arrives for the own one."""
        self._timeout = members.timeout
        self._base = x.copy()
        self._clock = 0
        # What was sent to each owner and may not be in what it publishes.
        self._own: dict[int, list[tuple[int, Array]]] = {rank: [] for rank in range(members.size)}
        self._open(Strips(members, x, self._take))
        return 1

    def _take(self, rank: int, number: int, change: Array) -> None:
        strips = self.strips
        strips.own += change
        strips.heard[rank] = number
        strips.publish()

    def exchange(self, x: Array, step: int, learning_rate: float) -> int:
        """Send the change of this step, and read the model when nobody is too far behind."""
        strips, store = self.strips, self.strips.members.store
        self._clock += 1
        end = time.monotonic() + self._timeout
        change = (x - self._base) / strips.size
        if self.slack == 0:
            # Who still reads the model of the step before must not find this change in it.
            store.wait_clocks(_has_read(self._clock - 1), _left(end))
        for owner in strips.owners:
            self._send(owner, change[strips.part(owner)], end)
        store.set_clock(_has_sent(self._clock))
        store.wait_clocks(_has_sent(max(self._clock - self.slack, 0)), _left(end))
        for owner in strips.owners:
            self._read(x, owner, end)
        if self.slack == 0:
            store.set_clock(_has_read(self._clock))
        np.copyto(self._base, x)
        return step + 1

    def _send(self, owner: int, change: Array, end: float) -> None:
        """Send a change, once the owner has applied the one before, which it does without its training."""
        while not self.strips.send(owner, change, self._clock):
            if owner not in self.strips.members.reachable:
                return
            _pause(end, f"rank {owner} does not take changes")
        self._own[owner].append((self._clock, change))

    def _read(self, x: Array, owner: int, end: float) -> None:
        while True:
            # First, because the strip then has all changes of those that have finished.
            under_way = self._under_way()
            if (found := self.strips.read(owner)) is None:
                return
            _, heard, strip = found
            clocks = [self._clock, *(int(heard[rank]) for rank in under_way)]
            if rules.may_begin(self._clock, clocks, self.slack):
                applied = int(heard[self.strips.rank])
                mine = self._own[owner] = [each for each in self._own[owner] if each[0] > applied]
                x[self.strips.part(owner)] = sum((each for _, each in mine), strip)
                return
            _pause(end, f"rank {owner} does not apply changes")

    def _under_way(self) -> list[int]:
        """Return the others whose changes are still to come: those that are there and have not finished."""
        members = self.strips.members
        found = [(rank, members.store.member(rank)) for rank in members.others]
        return [rank for rank, each in found if not each.gone and each.clock != FINISHED]

    def finish(self) -> None:
        """Wait until the last changes are applied, and serve the own strip until all have finished."""
        if self._strips is None:
            return
        end = time.monotonic() + self._timeout
        for owner in self._strips.owners:  # the others do not wait for who has finished
            while (found := self._strips.read(owner)) is not None:
                if int(found[1][self._strips.rank]) >= self._clock:
                    break
                _pause(end, f"rank {owner} does not apply the last changes")
        super().finish()


def _has_sent(clock: int) -> int:
    """Return the clock of a process that has sent the changes of a step."""
    return max(2 * clock - 1, 0)


def _has_read(clock: int) -> int:
    """Return the clock of a process that has read what all have after a step."""
    return 2 * clock


def _left(end: float) -> float:
    return max(end - time.monotonic(), 0.0)


def _pause(end: float, why: str) -> None:
    if time.monotonic() > end:
        raise DeadlineExceeded(f"{why} within the deadline of init(timeout=)")
    time.sleep(_PAUSE)
