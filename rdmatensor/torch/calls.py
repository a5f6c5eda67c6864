# SPDX-License-Identifier: Apache-2.0
"""How the operations of one process group run: at once or started, with time-outs, events and errors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from ..errors import RdmaError
from ..group import Group, Operation
from . import profiling
from .arrays import Finish
from .work import FutureQueue, Work, failure

_DETAIL = dist.DebugLevel.DETAIL


class Calls:
    """Runs operations on `group`, which errors call `name`. `limit` is their time-out, in seconds."""

    def __init__(self, group: Group, name: str, limit: float) -> None:
        self.group = group
        self.limit = limit
        self.sequence = 0
        """The number of operations that have begun here; it is the same at every member."""
        self._name = name
        self._futures = FutureQueue()
        self._coalesced: list[Work] | None = None
        # Members compare shapes too, not only sizes.
        self._compares = dist.get_debug_level() == _DETAIL

    def run(
        self,
        what: str,
        kind: Any,
        opts: Any,
        value: Any,
        finish: Finish | None = None,
        tensors: Sequence[torch.Tensor] = (),
        **arguments: Any,
    ) -> Work:
        """Run an operation of the group, of the kind `kind`. `what` is torch's name of it.

        `arguments` are those of the group's method. `finish` is called when it is done. `tensors` are what
        this member gives, with the same shapes at every member.
        """
        self.sequence += 1
        limit = self.limit_of(opts)
        if self._compares:
            arguments["detail"] = f"{what} of {[tuple(each.shape) for each in tensors]}"
        if opts.asyncOp or self._coalesced is not None or profiling.is_profiling():
            return self.start(
                what,
                value,
                lambda: (self.group.start(kind, timeout=limit, **arguments),),
                finish,
                tensors,
                limit,
                waits=not opts.asyncOp,
            )
        try:
            getattr(self.group, kind)(timeout=limit, **arguments)
        except RdmaError as error:
            raise failure(self._call(what), error) from error
        if finish is not None:
            finish()
        return Work(what, value)

    def start(
        self,
        what: str,
        value: Any,
        begin: Callable[[], Sequence[Operation]],
        finish: Finish | None,
        tensors: Sequence[torch.Tensor],
        limit: float,
        waits: bool = False,
    ) -> Work:
        """Return the Work of the operations that `begin` starts, complete if the caller `waits`."""
        record = profiling.begin(what, tensors) if profiling.is_profiling() else None
        try:
            operations = begin()
        except RdmaError as error:
            if record is not None:
                profiling.end(record)
            raise failure(self._call(what), error) from error
        work = Work(self._call(what), value, operations, finish, limit, self._futures, record)
        if self._coalesced is not None:
            self._coalesced.append(work)
        elif waits:
            work.wait()
        return work

    def message(
        self, what: str, tensor: torch.Tensor, finish: Finish | None = None, **arguments: Any
    ) -> Work:
        """Start sending a tensor, or receiving one."""
        kind: Any = "send" if what == "send" else "receive"
        return self.start(
            what,
            [tensor],
            lambda: (self.group.start(kind, timeout=self.limit, **arguments),),
            finish,
            [tensor],
            self.limit,
        )

    def abort(self, rank: int) -> None:
        """End everything at every member, in the name of `rank`."""
        self.group._abort(f"rank {rank} has aborted process group {self._name!r}")

    def together(self, what: str, works: Sequence[Work], value: Any) -> Work:
        """Return one Work that is complete when all of `works` are."""
        return works[0].joined(what, works[1:], value) if works else Work(what, value)

    def start_coalescing(self) -> None:
        """Start every operation until end_coalescing() without waiting for it."""
        self._coalesced = []

    def end_coalescing(self) -> Work:
        """Return one Work for all operations since start_coalescing()."""
        works, self._coalesced = self._coalesced or [], None
        return self.together("coalesced operations", works, [work.result() for work in works])

    def limit_of(self, opts: Any) -> float:
        """Return the time-out of a call in seconds: its own, or that of the process group."""
        limit: float = opts.timeout.total_seconds()
        return limit if limit > 0 else self.limit

    def _call(self, what: str) -> str:
        return f"{what}, operation {self.sequence} of process group {self._name!r}"
