# SPDX-License-Identifier: Apache-2.0
"""A command that runs in a guest."""

from __future__ import annotations

import re
import signal
import threading
import time
from collections.abc import Callable
from typing import NamedTuple, Protocol

from .errors import DeadlineExceeded, GuestDied
from .guest import protocol

Sink = Callable[[bytes], None]


class Done(NamedTuple):
    """How a command ended. The status is negative for a signal."""

    returncode: int
    stdout: str
    stderr: str


class Guest(Protocol):
    """What a process needs of the host it runs on."""

    def send(self, kind: int, number: int, payload: bytes = b"") -> None: ...

    def obituary(self) -> str: ...


class Process:
    """A command in a guest. Made by Host.start; methods may be called from any thread.

    Output is kept in `stdout` and `stderr` unless a sink takes it. A sink is called in the thread that
    serves the guest: while it blocks, the guest's other commands wait.
    """

    def __init__(
        self,
        guest: Guest,
        number: int,
        args: list[str],
        timeout: float,
        sinks: dict[int, Sink | None],
    ) -> None:
        self.args = args
        self._guest = guest
        self._number = number
        self._timeout = timeout
        self._sinks = sinks
        self._kept = {protocol.STDOUT: bytearray(), protocol.STDERR: bytearray()}
        self._pid: int | None = None
        self._returncode: int | None = None
        self._orphaned = False
        self._changed = threading.Condition()

    @property
    def returncode(self) -> int | None:
        """The exit status, negative for a signal; None while it runs, or when its guest died."""
        return self._returncode

    @property
    def stdout(self) -> bytes:
        """What was written so far."""
        with self._changed:
            return bytes(self._kept[protocol.STDOUT])

    @property
    def stderr(self) -> bytes:
        """What was written so far."""
        with self._changed:
            return bytes(self._kept[protocol.STDERR])

    @property
    def pid(self) -> int:
        """Its process id in the guest. Waits for the start; GuestDied, DeadlineExceeded."""
        self._wait_until(lambda: self._pid is not None, None, "did not start")
        assert self._pid is not None
        return self._pid

    def wait(self, timeout: float | None = None) -> int:
        """Waits for the end and returns the exit status, negative for a signal.

        `timeout` in seconds, the lab's by default. DeadlineExceeded: it goes on running. GuestDied.
        """
        self._wait_until(lambda: self._returncode is not None, timeout, "runs on")
        assert self._returncode is not None
        return self._returncode

    def wait_for_output(
        self, pattern: str, timeout: float | None = None, stream: str = "stdout"
    ) -> re.Match[str]:
        """Waits until a regular expression is found in what `stream` has kept so far.

        DeadlineExceeded, also when the command ends without having written that; GuestDied.
        """
        kept = self._kept[protocol.STDOUT if stream == "stdout" else protocol.STDERR]
        found: list[re.Match[str]] = []

        def look() -> bool:
            match = re.search(pattern, kept.decode(errors="replace"), re.MULTILINE)
            found.extend([match] if match else [])
            return match is not None or self._returncode is not None

        self._wait_until(look, timeout, f"did not write {pattern!r}")
        if not found:
            raise DeadlineExceeded(self._describe(f"ended without writing {pattern!r}"))
        return found[0]

    def write(self, data: bytes) -> None:
        """Gives it standard input; only for a process started with stdin=True."""
        for start in range(0, len(data), protocol.MAX_PAYLOAD):
            piece = data[start : start + protocol.MAX_PAYLOAD]
            self._guest.send(protocol.STDIN, self._number, piece)

    def close_stdin(self) -> None:
        """End of file, after what was written."""
        self._guest.send(protocol.STDIN, self._number)

    def send_signal(self, number: int, group: bool = False) -> None:
        """Sends a signal to this process alone, or with `group` also to its children."""
        kind = protocol.SIGNAL_GROUP if group else protocol.SIGNAL
        self._guest.send(kind, self._number, str(int(number)).encode())

    def kill(self) -> None:
        """SIGKILL for this process alone; its guest and its children go on."""
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        """SIGTERM for this process alone."""
        self.send_signal(signal.SIGTERM)

    def resize(self, rows: int, columns: int) -> None:
        """Tells its terminal a new size."""
        self._guest.send(protocol.RESIZE, self._number, f"{rows} {columns}".encode())

    def done(self) -> Done:
        """Status and output as text; only after its end."""
        assert self._returncode is not None
        out, err = (kept.decode(errors="replace") for kept in (self.stdout, self.stderr))
        return Done(self._returncode, out, err)

    def handle(self, kind: int, payload: bytes) -> None:
        """A frame about this process came. Called by the host."""
        sink = self._sinks.get(kind)
        if sink:
            sink(payload)
            return
        with self._changed:
            if kind in self._kept:
                self._kept[kind] += payload
            elif kind == protocol.STARTED:
                self._pid = int(payload)
            elif kind == protocol.EXIT:
                self._returncode = int(payload)
            self._changed.notify_all()

    def orphan(self) -> None:
        """The guest is gone. Called by the host."""
        with self._changed:
            self._orphaned = True
            self._changed.notify_all()

    def _describe(self, what: str) -> str:
        text = f"{' '.join(self.args)[:200]!r} {what}"
        tail = "".join(kept[-2000:].decode(errors="replace") for kept in self._kept.values())
        return f"{text}; it wrote:\n{tail}" if tail else text

    def _wait_until(
        self, condition: Callable[[], bool], timeout: float | None, complaint: str
    ) -> None:
        seconds = self._timeout if timeout is None else timeout
        end = time.monotonic() + seconds
        with self._changed:
            while not condition():
                if self._orphaned:
                    raise GuestDied(self._describe(f"was lost: {self._guest.obituary()}"))
                left = end - time.monotonic()
                if left <= 0:
                    raise DeadlineExceeded(self._describe(f"{complaint} after {seconds:g} s"))
                self._changed.wait(left)
