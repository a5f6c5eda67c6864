# SPDX-License-Identifier: Apache-2.0
"""Waiting for the C library in event loops of asyncio: a descriptor wakes the loop, and no thread waits."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent import futures
from contextlib import suppress
from functools import cache, partial, wraps
from itertools import count
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from .._ffi import ffi, lib
from ..errors import DeadlineExceeded, RdmaError, check
from .wait import IN_PROGRESS, seconds

if TYPE_CHECKING:
    from ..device import Device, Notification
    from .transfer import Transfer

_T = TypeVar("_T")
_P = ParamSpec("_P")
_Future = asyncio.Future[bool]
_log = logging.getLogger(__name__)
_AT_ONCE = 256  # tokens that are taken between two turns of the loop


class _Completion:
    """The coroutines of one loop that wait for one transfer."""

    def __init__(self, queue: LoopQueue, transfer: Transfer) -> None:
        self.futures: list[_Future] = []
        self._queue = queue
        self._transfer = transfer  # alive: its address is the key
        self._token = queue.register(self.end)
        self.pending = (
            lib.rdt_transfer_watch(transfer._handle, queue.handle, self._token) == IN_PROGRESS
        )
        if not self.pending:
            queue.forget(self._token)

    def end(self) -> None:
        """Wake the coroutines that wait for the transfer."""
        self._queue.forget(self._token)
        self._queue.completions.pop(id(self._transfer), None)
        for future in self.futures:
            if not future.done():
                future.set_result(True)


class _Readers:
    """The coroutines of one loop that wait for notifications of one device, in their order."""

    def __init__(self, queue: LoopQueue, device: Device) -> None:
        self._queue = queue
        self._device = device
        self._waiting: deque[_Future] = deque()  # also those whose turn it is, until they run
        self._token: int | None = None  # while it watches the device

    async def next(self, timeout: float | None) -> Notification:
        """Return the next notification. Raises DeadlineExceeded after `timeout` seconds."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds(timeout)
        woken, turn = False, not self._waiting
        while True:
            found = self._take() if turn else None
            if found is not None:
                return found
            future: _Future = loop.create_future()
            if woken:  # another reader was faster
                self._waiting.appendleft(future)
            else:
                self._waiting.append(future)
            woken = turn = await self._wait(future, end - loop.time())
            if not woken:
                raise DeadlineExceeded("no notification came within the deadline")

    def _take(self) -> Notification | None:
        """Take a notification. Unless there was none, wake the next reader."""
        found = None
        try:
            found = self._device._next(0)
        except BaseException:
            self._wake()
            raise
        if found is not None:
            self._wake()
        return found

    async def _wait(self, future: _Future, left: float) -> bool:
        try:
            self._watch()
            return await _in_time(future, left)
        except asyncio.CancelledError:
            self._leave(future)
            if not future.cancelled():
                self._wake()  # it was this reader's turn
            raise
        finally:
            self._leave(future)

    def _leave(self, future: _Future) -> None:
        with suppress(ValueError):
            self._waiting.remove(future)
        if not self._waiting:
            self.end()

    def _wake(self) -> None:
        """Let the first reader take what has come.

        If a reader was woken and has not run yet, no other reader overtakes it.
        """
        for future in self._waiting:
            if not future.done():
                future.set_result(True)
                return
            if not future.cancelled() and future.result():
                return

    def _watch(self) -> None:
        if self._token is not None:
            return
        self._token = self._queue.register(self._wake)
        self._queue.readers[self._device] = self
        with self._device._call() as device:
            check(lib.rdt_device_watch(device, self._queue.handle, self._token))

    def end(self) -> None:
        """Stop watching the device until the next reader waits."""
        if self._token is None:
            return
        self._queue.forget(self._token)
        self._token = None
        self._queue.readers.pop(self._device, None)
        with suppress(RdmaError), self._device._call() as device:  # closing it does the same
            lib.rdt_device_unwatch(device, self._queue.handle)


class LoopQueue:
    """What the coroutines of one event loop wait for. Only that loop's thread may use it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        out = ffi.new("rdt_event_queue **")
        check(lib.rdt_event_queue_open(out))
        self.handle = ffi.gc(out[0], lib.rdt_event_queue_close)
        self.completions: dict[int, _Completion] = {}  # by the addresses of their transfers
        self.readers: dict[Device, _Readers] = {}
        self._numbers = count(1)
        self._calls: dict[int, Callable[[], None]] = {}
        self._tokens = ffi.new("uint64_t[]", _AT_ONCE)
        loop.add_reader(lib.rdt_event_queue_fd(self.handle), self._take)

    def register(self, call: Callable[[], None]) -> int:
        """Return a token at which the loop calls `call`."""
        token = next(self._numbers)
        self._calls[token] = call
        return token

    def forget(self, token: int) -> None:
        """Ignore the token from now on."""
        self._calls.pop(token, None)

    def close(self) -> None:
        """Close the descriptor. The loop must not run any more."""
        for readers in list(self.readers.values()):
            readers.end()
        ffi.release(self.handle)

    def _take(self) -> None:
        taken = lib.rdt_event_queue_take(self.handle, self._tokens, _AT_ONCE)
        for token in self._tokens[0:taken]:
            call = self._calls.get(token)
            if call is not None:
                call()


# By loop, in this process. Those of closed loops are dropped when the next one is made.
_queues: dict[asyncio.AbstractEventLoop, LoopQueue] = {}
os.register_at_fork(after_in_child=_queues.clear)


def _running() -> LoopQueue:
    loop = asyncio.get_running_loop()
    queue = _queues.get(loop)
    if queue is None:
        _drop_closed()
        queue = _queues[loop] = LoopQueue(loop)
    return queue


def _drop_closed() -> None:
    for loop in [each for each in list(_queues) if each.is_closed()]:
        dropped = _queues.pop(loop, None)  # another thread may be faster
        if dropped is not None:
            dropped.close()


def _expire(future: _Future) -> None:
    if not future.done():
        future.set_result(False)


async def _in_time(future: _Future, left: float) -> bool:
    """Await the future, whose result is True. Return False if it has none `left` seconds from now."""
    timer = future.get_loop().call_later(max(left, 0), _expire, future)
    try:
        return await future
    finally:
        timer.cancel()


async def completion(transfer: Transfer) -> None:
    """Wait until the transfer is complete, for at most DEADLINE_MS."""
    queue = _running()
    waited = queue.completions.get(id(transfer))
    if waited is None:
        waited = _Completion(queue, transfer)
        if not waited.pending:
            return
        queue.completions[id(transfer)] = waited
    future: _Future = asyncio.get_running_loop().create_future()
    waited.futures.append(future)
    try:
        await _in_time(future, seconds(None))
    finally:
        waited.futures.remove(future)


async def notification(device: Device, timeout: float | None) -> Notification:
    """Return the device's next notification. Cancelling the call loses none."""
    queue = _running()
    readers = queue.readers.get(device)
    return await (readers or _Readers(queue, device)).next(timeout)


def call_logged(call: Callable[[Any], object], subject: Any) -> None:
    """Call a callback, and log what it raises, because nobody waits for it."""
    try:
        call(subject)
    except Exception:
        _log.exception("the callback %r of %r failed", call, subject)


def call_when_done(call: Callable[[Transfer], object], transfer: Transfer) -> None:
    """Call a callback on the thread for callbacks once the transfer is complete."""

    async def wait() -> None:
        while not transfer.done():
            await completion(transfer)
        call_logged(call, transfer)

    asyncio.run_coroutine_threadsafe(wait(), _callbacks(os.getpid()))


@cache
def _callbacks(process: int) -> asyncio.AbstractEventLoop:
    """Return the loop on which a process calls callbacks. A forked child needs another one."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="rdmatensor-callbacks", daemon=True).start()
    return loop


def awaitable(
    method: Callable[_P, _T], undo: Callable[[_T], object] | None = None
) -> Callable[_P, Coroutine[Any, Any, _T]]:
    """Return a coroutine function that runs `method` in a thread of its own.

    A pool could deadlock: a call in it may wait for another one that waits for a free thread. If the caller
    is cancelled, `undo` gets what the method returns afterwards.
    """

    @wraps(method, updated=())
    async def call(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        future: futures.Future[_T] = futures.Future()
        future.set_running_or_notify_cancel()  # so that it cannot be cancelled
        work = partial(method, *args, **kwargs)
        threading.Thread(target=_settle, args=(future, work), daemon=True).start()
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            if undo is not None:
                future.add_done_callback(lambda done: done.exception() or undo(done.result()))
            raise

    return call


def _settle(future: futures.Future[_T], call: Callable[[], _T]) -> None:
    try:
        future.set_result(call())
    except BaseException as error:
        future.set_exception(error)
