# SPDX-License-Identifier: Apache-2.0
"""Signals of windows: a thread that takes the notifications of a device, and who waits for them."""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from .._api.event_loop import call_logged
from .._api.remote import RemoteDevice
from ..device import Device
from ..errors import Cancelled, Closed, ConnectionLost, DeadlineExceeded, RdmaError

# In the number that a notification carries, the rank of its sender stands below the number of its box.
_RANK_BITS = 24
# The thread looks so often, in seconds, whether who waits has waited too long, or for a peer that is gone.
_IDLE, _BUSY = 1.0, 0.1
# Who is gone may have signalled before, over another connection, which the thread then still reads.
_GRACE = 1.0


class Mailbox:
    """Takes the notifications of a device, which nobody else takes, and gives them to boxes.

    Its thread ends when the device is closed.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        # Reentrant, as those below: windows that nobody has any more are closed in the middle of anything.
        self._lock = threading.RLock()
        self._numbers = itertools.count(1)
        self._boxes: dict[int, Box] = {}
        self._thread = threading.Thread(target=self._run, name="rdmatensor-windows", daemon=True)
        self._thread.start()

    def open(self, size: int) -> Box:
        """Return a new box for the signals of `size` ranks."""
        with self._lock:
            box = Box(self, next(self._numbers), size)
            self._boxes[box.number] = box
        return box

    def discard(self, box: Box) -> None:
        """Take no more signals for a box."""
        with self._lock:
            self._boxes.pop(box.number, None)

    def join(self) -> None:
        """Wait for the thread, unless it is the caller. The device is closed."""
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        looked = 0.0
        while True:
            try:
                note = self._device.next_notification(_BUSY if self._awaited() else _IDLE)
            except DeadlineExceeded:
                note = None
            except RdmaError as error:
                self._end(error)
                return
            if note is not None:
                self._deliver(note.immediate)
            now = time.monotonic()
            if note is None or now > looked + _BUSY:
                looked = now
                for signal in self._awaited():
                    signal.look(idle=note is None)

    def _deliver(self, immediate: int) -> None:
        number, rank = immediate >> _RANK_BITS, immediate & ((1 << _RANK_BITS) - 1)
        with self._lock:
            box = self._boxes.get(number)
        if box is not None and rank < box.size:
            box.arrive(rank)

    def _awaited(self) -> list[Signal]:
        with self._lock:
            boxes = list(self._boxes.values())
        return [signal for box in boxes for signal in box.awaited()]

    def _end(self, error: RdmaError) -> None:
        with self._lock:
            boxes, self._boxes = list(self._boxes.values()), {}
        for box in boxes:
            box.close(error)


class Box:
    """The signals of one window, counted by the rank that has sent them. Any thread may use it."""

    def __init__(self, mailbox: Mailbox, number: int, size: int) -> None:
        self.number = number
        self.size = size
        self._mailbox = mailbox
        self._lock = threading.RLock()
        self._spare: Counter[int] = Counter()
        # Oldest first.
        self._awaited: list[Signal] = []
        self._closed: RdmaError | None = None

    def arrive(self, rank: int) -> None:
        """Count a signal of a rank, for who has waited longest."""
        with self._lock:
            first = next((each for each in self._awaited if each.rank == rank), None)
            if first is None:
                self._spare[rank] += 1
                return
            self._awaited.remove(first)
        first.end(None)

    def wait(self, rank: int, limit: float, connect: Callable[[], RemoteDevice]) -> Signal:
        """Return what is complete once a signal of `rank` is there for it, each for one.

        It fails after `limit` seconds, and if the peer is gone, to which `connect` connects. A signal that
        is there already needs no peer. Raises what `connect` raises, unless the peer is gone already.
        """
        signal = Signal(self, rank, limit)
        with self._lock:
            is_there = self._spare[rank] > 0
        if not is_there:
            try:
                signal.peer = connect()
            except ConnectionError as error:
                signal.gone_since, signal.reason = time.monotonic(), str(error)
        with self._lock:
            closed = self._closed
            if closed is None and not self._spare[rank]:
                self._awaited.append(signal)
                return signal
            if closed is None:
                self._spare[rank] -= 1
        signal.end(closed)
        return signal

    def give_up(self, signal: Signal, error: RdmaError) -> None:
        """End a wait with an error, unless its signal has come. Later signals go to others."""
        with self._lock:
            if signal not in self._awaited:
                return
            self._awaited.remove(signal)
        signal.end(error)

    def awaited(self) -> list[Signal]:
        """Return what waits for signals."""
        with self._lock:
            return list(self._awaited)

    def close(self, error: RdmaError | None = None) -> None:
        """Take no more signals. Who waits gets the error: Cancelled by default. Again, it does nothing."""
        self._mailbox.discard(self)
        with self._lock:
            if self._closed is None:
                self._closed = error or Cancelled("the window is not registered any more")
            ended, self._awaited = self._awaited, []
        for signal in ended:
            signal.end(self._closed)


class Signal:
    """A wait for one signal, with the methods of an Operation that a Work uses."""

    def __init__(self, box: Box, rank: int, limit: float) -> None:
        self.rank = rank
        self.peer: RemoteDevice | None = None
        self.gone_since: float | None = None
        self.reason = "it is gone"
        self._box = box
        self._limit = limit
        self._deadline = time.monotonic() + limit
        self._ended = threading.Event()
        self._lock = threading.RLock()
        self._error: RdmaError | None = None
        self._calls: list[Callable[[Any], object]] = []

    def done(self) -> bool:
        """Return whether the signal has come, or the wait for it has failed."""
        return self._ended.is_set()

    def exception(self, timeout: float) -> RdmaError | None:
        """Block until it is done. Return the error, or None if the signal has come.

        Raises DeadlineExceeded if it is not done after `timeout` seconds.
        """
        end = time.monotonic() + timeout
        while not self._ended.wait(max(0.0, min(end, self._deadline) - time.monotonic())):
            now = time.monotonic()
            self._expire(now)
            if now >= end and not self.done():
                raise DeadlineExceeded("the signal has not come yet")
        return self._error

    def add_done_callback(self, call: Callable[[Any], object]) -> None:
        """Call `call` with this object when it is done: at once if it is, else in the mailbox's thread."""
        with self._lock:
            if not self.done():
                self._calls.append(call)
                return
        call(self)

    def end(self, error: RdmaError | None) -> None:
        """Be done, with an error or without. The caller holds no lock."""
        with self._lock:
            self._error = error
            self._ended.set()
            calls, self._calls = self._calls, []
        for call in calls:
            call_logged(call, self)

    def look(self, idle: bool) -> None:
        """End the wait if it has lasted too long, or if the peer is gone and all that it sent was read."""
        now = time.monotonic()
        self._expire(now)
        if self.gone_since is None:
            if self.peer is not None and not _is_up(self.peer):
                self.gone_since = now
        elif idle or now > self.gone_since + _GRACE:
            text = f"rank {self.rank} cannot signal any more: {self.reason}"
            self._box.give_up(self, ConnectionLost(text, "CONNECTION_LOST"))

    def _expire(self, now: float) -> None:
        if now >= self._deadline:
            text = f"rank {self.rank} has not signalled within {self._limit:.3g} s"
            self._box.give_up(self, DeadlineExceeded(text))


def number_for(box: int, rank: int) -> int:
    """Return the number of a notification with which a rank signals to a box."""
    return box << _RANK_BITS | rank


def _is_up(peer: RemoteDevice) -> bool:
    try:
        return peer.up
    except Closed:
        return False
