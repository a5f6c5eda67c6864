# SPDX-License-Identifier: Apache-2.0
"""Operations under way, as torch sees them: Work, and the futures of their results."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d
from torch.futures import Future

from .._api.group_calls import Operation
from ..errors import DeadlineExceeded, RdmaError
from . import profiling
from .arrays import Finish, cuda_devices

# By so much the wait for an operation outlasts the operation's own time-out.
_SLACK = 5.0
_NEVER = timedelta(0)


def failure(what: str, error: RdmaError) -> RuntimeError:
    """Return torch's error for one of a group."""
    late = isinstance(error, DeadlineExceeded)
    made: RuntimeError = dist.DistBackendError(
        f"rdmatensor: {'Timed out waiting for ' * late}{what}: {error}"
    )
    made.__cause__ = error
    return made


@contextmanager
def failing(what: str) -> Iterator[None]:
    """Turn errors of the block into torch's, which name the call `what`."""
    try:
        yield
    except RdmaError as error:
        raise failure(what, error) from error


class Work(c10d.Work):  # type: ignore[misc]
    """One call's operations: complete when all are, and `finishes` have run. Any thread may use it.

    `limit` is the time-out of the operations, in seconds. `value` is what result() returns, and what the
    future gets. `what` names the call in errors. `record` is an event of the profiler, which ends with them.
    """

    def __init__(
        self,
        what: str,
        value: Any,
        operations: Sequence[Operation] = (),
        finishes: Sequence[Finish] = (),
        limit: float = 0.0,
        queue: FutureQueue | None = None,
        record: Any = None,
    ) -> None:
        super().__init__()
        self._what = what
        self._value = value
        self._operations = operations
        self._finishes = finishes
        self._limit = limit + _SLACK
        self._queue = queue
        self._record = record
        self._done = queue is None  # what has ended before is in no queue
        self._error: RuntimeError | None = None
        self._future: _WorkFuture | None = None
        self._registered: Sequence[torch.Tensor] = ()
        self.sequence = 0
        """The number of the call among those of the process group, from 1 on; 0 for calls without one."""

    def wait(self, timeout: timedelta = _NEVER) -> bool:
        """Block until the operations are complete, and the future if there is one.

        Raises the error with which they failed. After `timeout`, if it is not zero, raises RuntimeError; the
        operations go on.
        """
        popped: list[Work] | None = getattr(_popping, "works", None)
        if popped is not None:
            popped.append(self)
            return True
        if not self._done:
            self._settle(timeout.total_seconds())
        if self._registered:
            self._unregister()
        if self._future is not None:
            # The thread of futures may be busy, and callers of get_future() rely on it after wait().
            self._future.finish()
        if self._error is not None:
            raise self._error
        return True

    def synchronize(self) -> None:
        """Do what wait() does."""
        self.wait()

    def is_completed(self) -> bool:
        """Return whether the operations are complete, successfully or not."""
        if not self._done and all(each.done() for each in self._operations):
            self._settle(0.0)
        return self._done

    def is_success(self) -> bool:
        """Return whether the operations are complete and none failed."""
        return self.is_completed() and self._error is None

    def exception(self) -> RuntimeError | None:
        """Return the error with which the operations failed; None if they did not, or are under way."""
        return self._error if self.is_completed() else None

    def result(self) -> Any:
        """Return the tensors that the operations write. They are valid after wait()."""
        return self._value

    def source_rank(self) -> int:
        """Return the rank, in the group, that sent what was received; -1 for other operations."""
        source: int = getattr(self._operations[0], "source", -1) if self._operations else -1
        return source

    _source_rank = source_rank

    def _get_sequence_number(self) -> int:
        return self.sequence

    def get_future(self) -> Future:
        """Return a future of the result. It is the same one each time.

        Futures of a process group are completed in the order in which they were asked for, by one thread, so
        that operations that their callbacks start are in the same order at every member. Who waits for one,
        or for its Work, completes it at once.
        """
        future = self._future
        if future is None:
            future = self._future = _WorkFuture(self)
            if self._done or self._queue is None:
                future.complete()
            else:
                self._queue.add(future, self._operations)
        return future

    def joined(self, what: str, others: Sequence[Work]) -> Work:
        """Return one Work that is complete when this one and `others` are, with the results of all."""
        works = [self, *others]

        def finish() -> None:
            for each in works:
                each.wait()

        operations = [each for work in works for each in work._operations]
        limit = max(work._limit for work in works)
        values = [work.result() for work in works]
        made = Work(what, values, operations, [finish], limit, self._queue)
        made.sequence = self.sequence
        return made

    def register(self) -> None:
        """Let wait_tensor() of what the operations write wait for them, until wait() has ended."""
        self._registered = [each for each in _tensors_in(self._value) if _has_storage(each)]
        for each in self._registered:
            c10d._register_work(each, self)

    def _unregister(self) -> None:
        """Take this Work from torch's registry, of which wait_tensor() takes all works on a storage."""
        tensors, self._registered = self._registered, ()
        for tensor in tensors:
            popped: list[Work] = []
            _popping.works = popped
            try:
                torch.ops._c10d_functional.wait_tensor(tensor)
            finally:
                del _popping.works
            for other in popped:
                if other is not self and other._registered:
                    c10d._register_work(tensor, other)

    def fail(self, error: RdmaError) -> None:
        """End with this error, once the operations that could be started have ended."""
        self._error = failure(self._what, error)
        self.wait()

    def _settle(self, timeout: float) -> None:
        """Wait for the operations, and do what is to be done after them, once."""
        error: RdmaError | None = None
        for each in self._operations:
            try:
                error = each.exception(timeout if timeout > 0 else self._limit) or error
            except DeadlineExceeded:
                raise RuntimeError(f"Operation timed out! rdmatensor: {self._what}") from None
        with _settling:
            if self._done:
                return
            if error is not None and self._error is None:
                self._error = failure(self._what, error)
            elif self._error is None:
                try:
                    for finish in self._finishes:
                        finish()
                except RuntimeError as problem:
                    self._error = problem
            if self._record is not None:
                profiling.end(self._record)
            self._finishes, self._record = (), None
            self._done = True


# What follows an operation is short, and two threads seldom do it at the same time.
_settling = threading.RLock()
# In `works`, while a thread takes works from torch's registry: those that it does not wait for.
_popping = threading.local()


def _tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors of a result, which may stand in lists."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _tensors_in(each)


def _has_storage(tensor: torch.Tensor) -> bool:
    """Return whether torch's registry can have the tensor, which it knows by its storage."""
    return bool(tensor.layout == torch.strided)


class FutureQueue:
    """The futures of one process group that are not complete, in their order."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[_WorkFuture] = deque()
        self._busy = False
        self._again = False

    def add(self, future: _WorkFuture, operations: Sequence[Operation]) -> None:
        """Complete `future` after `operations`, and after the futures that were added before it."""
        with self._lock:
            self._waiting.append(future)
        for each in operations:
            each.add_done_callback(self._advance)
        self._advance()

    def _advance(self, _operation: object = None) -> None:
        with self._lock:
            if self._busy:
                self._again = True
                return
            self._busy = True
        while True:
            with self._lock:
                due = bool(self._waiting) and self._waiting[0].is_due()
                if due:
                    first = self._waiting.popleft()
                elif not self._again:
                    self._busy = False
                    return
                self._again = False
            if due:
                first.complete()


class _WorkFuture(Future):  # type: ignore[misc]
    """The future of a Work. Who waits for it in Python completes it, without waiting for another thread."""

    def __init__(self, work: Work) -> None:
        # Those who wait for a future let their streams wait for what the current ones have queued by then.
        super().__init__(devices=cuda_devices(work.result()))
        # Until it is complete: afterwards a work and its future would keep each other, and tensors, alive.
        self._work: Work | None = work
        self._once = threading.Lock()

    def is_due(self) -> bool:
        """Return whether the work is complete."""
        work = self._work
        return work is None or work.is_completed()

    def wait(self) -> Any:
        """Block until the work is complete, and return its result. Raises the error with which it failed."""
        work = self._work
        if work is not None:
            work._settle(0.0)
            self.complete()
        return super().wait()

    def finish(self) -> None:
        """Be complete when it returns: the work is. Another thread may still run callbacks."""
        self.complete()
        if not self.done():
            with contextlib.suppress(RuntimeError):  # the error of the work
                super().wait()

    def complete(self) -> None:
        """Set the result, once; the caller runs callbacks."""
        with self._once:
            work, self._work = self._work, None
        if work is None:
            return
        error = work.exception()
        if error is None:
            self.set_result(work.result())
        else:
            self.set_exception(error)
