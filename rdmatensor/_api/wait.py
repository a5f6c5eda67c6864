# SPDX-License-Identifier: Apache-2.0
"""Time-outs, and waiting for the C library from threads and from asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Event
from typing import TypeVar

from .._ffi import lib
from ..config import get_int
from ..errors import UsageError

T = TypeVar("T")

DEADLINE: int = lib.RDT_ERR_DEADLINE
IN_PROGRESS: int = lib.RDT_IN_PROGRESS
_LONGEST_MS = 2**31 - 1
# A wait returns to Python this often, so that Ctrl-C and close() act before its deadline.
_SLICE_MS = 100
_WAITERS = 32


def milliseconds(timeout: float | None) -> int:
    """Converts seconds for the C library. None is the setting DEADLINE_MS."""
    if timeout is None:
        return int(lib.RDT_TIMEOUT_DEFAULT)
    if not timeout >= 0:
        raise UsageError(f"timeout is {timeout!r}: give seconds >= 0, or None for DEADLINE_MS")
    return _LONGEST_MS if math.isinf(timeout) else min(math.ceil(timeout * 1000), _LONGEST_MS)


def wait_in_slices(
    wait: Callable[[int], int], timeout: float | None, stopped: Callable[[], bool] | None = None
) -> int:
    """Calls `wait(milliseconds)` until it returns something other than DEADLINE, or time is up.

    Returns the last status, which is IN_PROGRESS only if `timeout` is 0. Ends early if `stopped()` is true.
    """
    left = milliseconds(timeout)
    if left < 0:
        left = get_int("DEADLINE_MS")
    if left <= _SLICE_MS and stopped is None:
        return wait(left)
    end = time.monotonic() + left / 1000
    while True:
        status = wait(min(left, _SLICE_MS))
        if status != DEADLINE:
            return status
        left = math.ceil((end - time.monotonic()) * 1000)
        if left <= 0 or (stopped is not None and stopped()):
            return status


class _Waiters:
    """The threads in which coroutines wait. Each process makes them when it first needs them."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._pid = 0

    def submit(self, call: Callable[[], T]) -> Future[T]:
        if self._pool is None or self._pid != os.getpid():
            self._pool = ThreadPoolExecutor(_WAITERS, thread_name_prefix="rdmatensor-wait")
            self._pid = os.getpid()
        return self._pool.submit(call)


_waiters = _Waiters()


async def in_thread(
    call: Callable[[Callable[[], bool]], T], abandoned: Callable[[T], None] | None = None
) -> T:
    """Awaits `call(stopped)` in a waiter thread, so that no Python runs on the progress thread.

    If the coroutine is cancelled, `stopped()` becomes true. A result that `call` returns after that goes to
    `abandoned`.
    """
    stop = Event()
    future = _waiters.submit(lambda: call(stop.is_set))
    try:
        return await asyncio.wrap_future(future)
    except asyncio.CancelledError:
        stop.set()
        if abandoned is not None:
            future.add_done_callback(lambda done: _hand_back(done, abandoned))
        # The thread ends within a slice. Until then it could take what is meant for the next waiter.
        with contextlib.suppress(Exception, asyncio.CancelledError):
            await asyncio.shield(asyncio.wrap_future(future))
        raise


def _hand_back(future: Future[T], abandoned: Callable[[T], None]) -> None:
    if not future.cancelled() and future.exception() is None:
        abandoned(future.result())
