# SPDX-License-Identifier: Apache-2.0
"""How the operations of one process group run: at once or started, with time-outs, events and errors."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from .._api.group_calls import Operation
from .._ffi import ffi
from ..errors import RdmaError
from ..group import Group
from . import profiling
from .arrays import Finish, code_of, flat
from .work import FutureQueue, Work, failing, failure

_DETAIL = dist.DebugLevel.DETAIL


class Part(NamedTuple):
    """One operation of a call: its kind, the arguments of the group's method, and what follows it."""

    kind: Any
    arguments: dict[str, Any]
    finish: Finish | None = None


class Calls:
    """Runs operations on `group`, which errors call `name`. `limit` is their time-out, in seconds.

    `ranks` are those of the members among all processes, if they are not all.
    """

    def __init__(self, group: Group, name: str, limit: float, ranks: Sequence[int]) -> None:
        self.group = group
        group._calls.in_order = True
        self.limit = limit
        self.sequence = 0
        """The number of operations that have begun here; it is the same at every member."""
        of = f" of ranks {', '.join(map(str, ranks))}" if ranks else ""
        self._name = f"process group {name!r}{of}"
        self._futures = FutureQueue()
        self._coalesced: list[Work] | None = None
        # Members compare shapes too, not only sizes.
        self._compares = dist.get_debug_level() == _DETAIL
        self._compared = threading.local()

    @contextmanager
    def comparing(self, text: str) -> Iterator[None]:
        """Let members compare `text` in each collective operation that this thread begins within the block.

        If it differs, the operation fails at all of them, with an error that quotes the first line of both
        that differs.
        """
        self._compared.text = text
        try:
            yield
        finally:
            del self._compared.text

    def run(
        self,
        what: str,
        opts: Any,
        value: Any,
        parts: Sequence[Part],
        tensors: Sequence[torch.Tensor] = (),
    ) -> Work:
        """Run operations of the group. `what` is torch's name of them, and `value` their result.

        `tensors` are what this member gives, with the same shapes at every member.
        """
        self.sequence += 1
        limit = self.limit_of(opts)
        text = getattr(self._compared, "text", None)
        if self._compares and text is None:
            text = f"{what} of {[tuple(each.shape) for each in tensors]}"
        if text is not None:
            for part in parts:
                own = part.arguments.get("detail")
                part.arguments["detail"] = text if own is None else f"{text}\n{own}"
        if (
            opts.asyncOp
            or len(parts) != 1
            or self._coalesced is not None
            or profiling.is_profiling()
        ):
            return self.start(what, value, parts, limit, tensors, waits=not opts.asyncOp)
        kind, arguments, finish = parts[0]
        try:
            getattr(self.group, kind)(timeout=limit, **arguments)
        except RdmaError as error:
            raise failure(self._call(what), error) from error
        if finish is not None:
            finish()
        work = Work(what, value)
        work.sequence = self.sequence
        return work

    def start(
        self,
        what: str,
        value: Any,
        parts: Sequence[Part],
        limit: float,
        tensors: Sequence[torch.Tensor] = (),
        waits: bool = False,
    ) -> Work:
        """Start operations of the group. Return their Work, complete if the caller `waits`.

        `limit` is their time-out in seconds.
        """
        record = profiling.begin(what, tensors) if profiling.is_profiling() else None
        operations: list[Operation] = []
        work = Work(
            self._call(what),
            value,
            operations,
            [part.finish for part in parts if part.finish is not None],
            limit,
            self._futures,
            record,
        )
        work.sequence = self.sequence
        try:
            for kind, arguments, _ in parts:
                operations.append(self.group.start(kind, timeout=limit, **arguments))
        except RdmaError as error:
            work.fail(error)
        return self._begun(work, waits)

    def message(
        self,
        what: str,
        tensor: torch.Tensor,
        memory: torch.Tensor,
        root: int | None,
        tag: int,
        finish: Finish | None = None,
        receives: bool = False,
    ) -> Work:
        """Start to send a tensor to rank `root`, or to receive one from there, by way of `memory`."""
        record = profiling.begin(what, [tensor]) if profiling.is_profiling() else None
        operations: list[Operation] = []
        error: RdmaError | None = None
        try:
            operations.append(self._begin_message(memory, root, tag, receives))
        except RdmaError as problem:
            error = problem
        over = all(each.done() and not each.exception() for each in operations)
        work = Work(
            self._call(what),
            [tensor],
            operations,
            () if finish is None else (finish,),
            self.limit,
            None if over and finish is record is error is None else self._futures,
            record,
        )
        work.sequence = self.sequence
        if error is not None:
            work.fail(error)
        return self._begun(work)

    def _begin_message(
        self, memory: torch.Tensor, root: int | None, tag: int, receives: bool
    ) -> Operation:
        calls, count, code = self.group._calls, memory.numel(), code_of(memory.dtype)
        if code is None or count == 0 or calls.costs is not None:
            kind: Any = "receive" if receives else "send"
            return self.group.start(kind, flat(memory), root=root, tag=tag, timeout=self.limit)
        address = ffi.cast("void *", memory.data_ptr())
        return calls.start_message(
            receives, address, count, code, root, tag, self.limit, keep=memory
        )

    def _begun(self, work: Work, waits: bool = False) -> Work:
        """Return a call's Work, whose operations have been started."""
        if not waits and c10d._allow_inflight_collective_as_graph_input():
            work.register()
        if self._coalesced is not None:
            self._coalesced.append(work)
        elif waits:
            work.wait()
        return work

    def abort(self, rank: int) -> None:
        """End everything at every member, in the name of `rank`."""
        self.group._calls.abort(f"rank {rank} has aborted {self._name}")

    def start_coalescing(self) -> None:
        """Start every operation until end_coalescing() without waiting for it."""
        self._coalesced = []

    def end_coalescing(self) -> Work:
        """Return one Work for all operations since start_coalescing()."""
        works, self._coalesced = self._coalesced or [], None
        if not works:
            return Work("coalesced operations", [])
        return works[0].joined("coalesced operations", works[1:])

    def limit_of(self, opts: Any) -> float:
        """Return the time-out of a call in seconds: its own, or that of the process group."""
        limit: float = opts.timeout.total_seconds()
        return limit if limit > 0 else self.limit

    def failing(self, what: str) -> AbstractContextManager[None]:
        """Turn errors of the block into torch's, which name the call `what`."""
        return failing(self.text(what))

    def text(self, what: str) -> str:
        """Return the name of a call that members do not count, for errors."""
        return f"{what} of {self._name}"

    def _call(self, what: str) -> str:
        return self.text(f"{what}, operation {self.sequence}")
