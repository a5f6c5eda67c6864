# SPDX-License-Identifier: Apache-2.0
"""A command that runs in a guest."""

from __future__ import annotations

import re
import signal
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from .errors import DeadlineExceeded, GuestDied
from .guest import protocol

if TYPE_CHECKING:
    from .host import Boot

Sink = Callable[[bytes], None]


class Done(NamedTuple):
    """The result of a command. `returncode` is negative if a signal ended it."""

    returncode: int
    stdout: str
    stderr: str


class Process:
    """A command in a guest. Host.start() makes it, and any thread may call its methods.

    `stdout` and `stderr` keep the output unless a sink takes it. The thread that serves the guest calls the
    sink: while a sink blocks, the guest's other commands wait.
    """

    def __init__(
        self,
        guest: Boot,
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
        self._returncode: int | None = None
        self._orphaned = False
        self._changed = threading.Condition()

    @property
    def returncode(self) -> int | None:
        """The exit status, negative for a signal. It is None until the command ends, or if the guest died."""
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

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end and return the exit status, negative for a signal.

        `timeout` is in seconds and defaults to the lab's. Raises DeadlineExceeded, and the command runs on,
        or GuestDied.
        """
        self._wait_until(lambda: self._returncode is not None, timeout, "still runs")
        assert self._returncode is not None
        return self._returncode

    def wait_for_output(self, pattern: str, timeout: float | None = None) -> re.Match[str]:
        """Wait until `stdout` contains a regular expression, and return the match.

        Raises DeadlineExceeded, also if the command ends without writing it, or GuestDied.
        """
        kept = self._kept[protocol.STDOUT]
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
        """Write to standard input. The process must have been started with stdin=True or a terminal."""
        for start in range(0, len(data), protocol.MAX_PAYLOAD):
            piece = data[start : start + protocol.MAX_PAYLOAD]
            self._guest.send(protocol.STDIN, self._number, piece)

    def close_stdin(self) -> None:
        """End standard input after what was written."""
        self._guest.send(protocol.STDIN, self._number)

    def send_signal(self, number: int, group: bool = False) -> None:
        """Send a signal to this process only or, with `group`, also to its children."""
        kind = protocol.SIGNAL_GROUP if group else protocol.SIGNAL
        self._guest.send(kind, self._number, str(int(number)).encode())

    def kill(self) -> None:
        """Kill this process only. Its children and its guest keep running."""
        self.send_signal(signal.SIGKILL)

    def resize(self, rows: int, columns: int) -> None:
        """Change the size of its terminal."""
        self._guest.send(protocol.RESIZE, self._number, f"{rows} {columns}".encode())

    def exit_status(self, timeout: float | None = None) -> int:
        """Wait as wait() does and return the status as a shell does: 128 + N for signal N."""
        code = self.wait(timeout)
        return 128 - code if code < 0 else code

    def done(self) -> Done:
        """Return the status and the output as text. Call it only after the process has ended."""
        assert self._returncode is not None
        out, err = (kept.decode(errors="replace") for kept in (self.stdout, self.stderr))
        return Done(self._returncode, out, err)

    def handle(self, kind: int, payload: bytes) -> None:
        """Handle a frame from the guest. The serving thread calls it."""
        sink = self._sinks.get(kind)
        if sink:
            sink(payload)
            return
        with self._changed:
            if kind in self._kept:
                self._kept[kind] += payload
            elif kind == protocol.EXIT:
                self._returncode = int(payload)
            self._changed.notify_all()

    def orphan(self) -> None:
        """Handle the end of the guest. The serving thread calls it."""
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
