# SPDX-License-Identifier: Apache-2.0
"""Let processes stop while others go on: these tell them what they do, and they take part with zeros.

A process that joins asks another one to tell it of the operations that it has not begun, and takes part in
them, until the other one joins, too. Then it asks the next one. Who is not asked only notes what it begins.
"""

from __future__ import annotations

import pickle
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple, TypeAlias

import torch
import torch.distributed as dist

from ...errors import DeadlineExceeded, UsageError
from ...torch import ProcessGroup

# Tags of messages: a question, and what is told.
_ASK, _TELL = 1, 2
_LOOK = timedelta(seconds=1)


class Reduction(NamedTuple):
    """An all-reduce of so many elements. A process that has joined gives zeros."""

    dtype: torch.dtype
    device: str
    elements: int
    op: Any
    """torch's reduction."""


BARRIER = "barrier"
REFUSED = "refused"
"""An operation that fails at all members once one has joined."""

Slot: TypeAlias = Reduction | str
"""An operation of the group."""


@dataclass(eq=False)
class _Begun:
    """An operation that has begun here, and maybe not at others."""

    number: int
    text: str
    slots: Sequence[Slot]
    works: list[Any] | None = None

    def is_over(self) -> bool:
        """Return whether it is complete, so that all have begun it."""
        return self.works is not None and all(each.is_success() for each in self.works)


class Joining:
    """Who has joined, among the members of a group, as far as this process has to know. Thread-safe."""

    def __init__(self, group: ProcessGroup) -> None:
        self._group = group
        control = group.split_group(list(range(group.size())), group_name="joining")
        assert control is not None  # this process is among them
        self._control = control
        self._lock = threading.Lock()
        self._round = 0
        """How often all have joined."""
        self._number = 0
        """How many operations have begun here."""
        self._begun: deque[_Begun] = deque()
        self._told: dict[int, int] = {}
        """Those that have joined and are told of operations, and from which number on."""
        self._early: list[tuple[int, int]] = []
        """Questions of those that have joined again, before this process has left join()."""
        self._joined = False
        self._taken: list[Any] = []
        """The works of operations in which this process takes part for others."""
        self._problem: BaseException | None = None
        if group.size() > 1:
            self._listen()

    def close(self) -> None:
        """Tell nobody any more."""
        self._control.shutdown()

    def run(self, text: str, slots: Sequence[Slot], start: Callable[[], list[Any]]) -> list[Any]:
        """Begin an operation, and return its works, which `start` returns.

        `slots` are what it is for the group, and `text` what members compare in it. Once its works are
        complete, all have begun it. The caller may take works that are complete out of the list.
        """
        with self._lock:
            if self._begun and self._begun[-1].is_over():
                self._begun.clear()
            while self._begun and self._begun[0].is_over():
                self._begun.popleft()
            begun = _Begun(self._number, text, slots)
            self._number += 1
            self._begun.append(begun)
            for rank, first in self._told.items():
                # Who has joined may have got an error from it before it began here.
                if begun.number >= first:
                    self._tell(rank, begun)
        begun.works = start()
        return begun.works

    def join(self, device: int) -> int:
        """Take part in what others do until all have joined. Return the last one.

        Zeros for CUDA tensors are on `device`, or on the current one if it is negative.
        """
        rank, size = self._group.rank(), self._group.size()
        with self._lock:
            began, number = time.monotonic(), self._number
            self._joined = True
            for other in self._told:
                self._send(other, b"")
            self._told.clear()
        for step in range(1, size):
            self._follow((rank + step) % size, device)
        # The last one has begun most; of those that have begun as much, it has waited for the shortest time.
        mine = torch.tensor([number, began - time.monotonic()], dtype=torch.float64)
        every = mine.new_empty(size, 2)
        with self._group.comparing("join"):
            dist.all_gather(list(every), mine, self._group, async_op=True).wait()
        for work in self._taken:
            with suppress(dist.DistBackendError):
                work.wait()
        self._taken.clear()
        with self._lock:
            self._joined = False
            self._round += 1
            early, self._early = self._early, []
            for question in early:
                self._answer(*question)
        return max(range(size), key=lambda each: (*every[each].tolist(), each))

    def _follow(self, other: int, device: int) -> None:
        """Take part in what another one does until it joins."""
        question = torch.tensor([self._group.rank(), self._round, self._number])
        self._control.send([question], other, _ASK)
        while told := self._receive(other):
            text, slots = pickle.loads(told)
            self._number += 1
            for slot in slots:
                self._take_part(text, slot, device)
            self._check()

    def _take_part(self, text: str, slot: Slot, device: int) -> None:
        group = self._group
        if slot == REFUSED:
            # It fails everywhere, because texts differ.
            text = f"rank {group.rank()} has called join(): only allreduce and barrier go on"
        with group.comparing(text):
            if isinstance(slot, str):
                work = dist.barrier(group, async_op=True)
            else:
                place = torch.device(slot.device)
                if place.type != "cpu" and device >= 0:
                    place = torch.device(slot.device, device)
                zeros = torch.zeros(slot.elements, dtype=slot.dtype, device=place)
                work = dist.all_reduce(zeros, slot.op, group, async_op=True)
        self._taken.append(work)

    def _receive(self, other: int) -> bytes:
        """Return the next description that another one sends; none if it joins."""
        size = torch.zeros(1, dtype=torch.int64)
        self._wait(self._control.recv([size], other, _TELL))
        told = torch.zeros(int(size), dtype=torch.uint8)
        if len(told):
            self._wait(self._control.recv([told], other, _TELL))
        return bytes(told.numpy())

    def _wait(self, work: Any) -> None:
        """Wait for a message. Raises DistBackendError if its sender, or another member, is lost."""
        while True:
            try:
                work.wait(_LOOK)
                return
            except RuntimeError:
                self._check()
                if work.exception() is not None:
                    raise
                if self._problem is not None:
                    raise self._problem from None

    def _check(self) -> None:
        """Forget what is complete. Raises the error of an operation that failed since a member is lost."""
        taken, self._taken = self._taken, []
        for each in taken:
            if not each.is_completed():
                self._taken.append(each)
                continue
            error = each.exception()
            # Where members disagree, those that have begun the operation get the error.
            if error is not None and not isinstance(error.__cause__, UsageError):
                raise error

    def _listen(self) -> None:
        """Wait for a question, without a thread."""
        question = torch.zeros(3, dtype=torch.int64)
        work = self._control.recv_anysource([question], _ASK)

        def asked(_: Any) -> None:
            error = work.exception()
            if error is None:
                rank, turn, number = question.tolist()
                with self._lock:
                    if turn == self._round:
                        self._answer(rank, number)
                    else:
                        self._early.append((rank, number))
            elif not isinstance(error.__cause__, DeadlineExceeded):
                self._problem = error
                return
            self._listen()

        work.get_future().add_done_callback(asked)

    def _answer(self, rank: int, number: int) -> None:
        """Tell a process of the operations from this number on. Call it under the lock."""
        for begun in self._begun:
            if begun.number >= number:
                self._tell(rank, begun)
        if self._joined:
            self._send(rank, b"")
        else:
            self._told[rank] = number

    def _tell(self, rank: int, begun: _Begun) -> None:
        self._send(rank, pickle.dumps((begun.text, begun.slots)))

    def _send(self, rank: int, told: bytes) -> None:
        """Start to send a description, or none. Who is lost gets none."""
        with suppress(dist.DistBackendError):
            self._control.send([torch.tensor([len(told)])], rank, _TELL)
            if told:
                text = torch.frombuffer(bytearray(told), dtype=torch.uint8)
                self._control.send([text], rank, _TELL)
