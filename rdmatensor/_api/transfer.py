# SPDX-License-Identifier: Apache-2.0
"""The completion of posted operations."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from typing import Any

from .._ffi import lib
from ..errors import DeadlineExceeded, RdmaError, error_from
from .buffers import Array
from .event_loop import call_logged, call_when_done, completion
from .wait import DEADLINE, IN_PROGRESS, milliseconds, wait_in_slices

_poll = lib.rdt_transfer_wait


class Transfer:
    """Posted operations, complete or not. Methods that post operations return it.

    Call `wait()` or `await` it. `done`, `result`, `exception` and `add_done_callback` are those of a
    concurrent.futures.Future. It keeps the local buffers alive until the operations are complete; if it is
    dropped before that, the connection keeps them. Any thread may use it.
    """

    __slots__ = ("_back", "_error", "_handle", "_keep", "_status")
    _failure = staticmethod(error_from)

    def __init__(self, handle: Any, keep: Any, back: Callable[[], None] | None = None) -> None:
        self._handle = handle
        self._keep = keep
        self._back = back
        self._status = IN_PROGRESS if handle is not None else 0
        self._error: RdmaError | None = None

    def __repr__(self) -> str:
        if not self.done():
            return "<Transfer in progress>"
        return "<Transfer complete>" if self._error is None else f"<Transfer failed: {self._error}>"

    def done(self) -> bool:
        """Return whether the operations are complete, successfully or not. Does not block."""
        return self._status != IN_PROGRESS or self._settle(_poll(self._handle, 0))

    def wait(self, timeout: float | None = None) -> None:
        """Block until the operations are complete, for at most `timeout` seconds (None: DEADLINE_MS).

        Raises the error with which they failed. Raises DeadlineExceeded if they are not complete: they go
        on, and you can wait again.
        """
        if self._status == IN_PROGRESS:
            self._settle(wait_in_slices(self._wait_once, timeout))
            self._check()
        elif timeout is not None:
            milliseconds(timeout)
        if self._error is not None:
            raise self._error

    def result(self, timeout: float | None = None) -> Array | None:
        """Wait as wait() does, and return the operations' result: None, except for an Operation."""
        self.wait(timeout)
        return None

    def exception(self, timeout: float | None = None) -> RdmaError | None:
        """Wait as wait() does, but return the error with which the operations failed; None if they did not.

        Raises DeadlineExceeded if they are not complete.
        """
        try:
            self.wait(timeout)
        except RdmaError as error:
            if error is not self._error:
                raise
        return self._error

    def add_done_callback(self, call: Callable[[Transfer], object]) -> None:
        """Call `call` with this object once the operations are complete: at once if they are.

        Otherwise the thread that runs all callbacks of the process calls it. What `call` raises is logged.
        """
        if self.done():
            call_logged(call, self)
        else:
            call_when_done(call, self)

    def __await__(self) -> Generator[Any, None, Array | None]:
        return self._wait_async().__await__()

    async def _wait_async(self) -> Array | None:
        if not self.done():
            await completion(self)
        self._check()
        return self.result()

    def _check(self) -> None:
        if not self.done():
            raise DeadlineExceeded("the transfer is not complete yet")
        if self._error is not None:
            raise self._error

    def _wait_once(self, milliseconds: int) -> int:
        status: int = lib.rdt_transfer_wait(self._handle, milliseconds)
        # A transfer that failed with DEADLINE is complete: do not wait again. Only polling tells that
        # from a wait that timed out.
        return 0 if status == DEADLINE and self.done() else status

    def _settle(self, status: int) -> bool:
        """Record a status that C returned for this transfer. Return whether it is complete."""
        if self._status != IN_PROGRESS:
            return True
        if status == IN_PROGRESS or (status == DEADLINE and _poll(self._handle, 0) == IN_PROGRESS):
            return False
        if status < 0:
            self._error = self._failure(status)
        elif self._back is not None:
            try:
                self._back()  # before anybody learns that they are complete
            except RdmaError as error:
                self._error = error
        self._status = status
        self._keep = None
        return True


def drop_complete(pending: deque[Any]) -> None:
    """Drop the complete transfers at the front. Other threads may do this, and append, at the same time.

    The caller holds no lock, because the buffers may have finalizers, which may do anything.
    """
    while pending:
        try:
            first = pending[0]
            if not first.done():
                return
            pending.remove(first)
        except (IndexError, ValueError):
            pass  # another thread was faster


# What posting returns when the operations are complete already, as usual on shared memory.
COMPLETED = Transfer(None, None)
