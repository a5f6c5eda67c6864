# SPDX-License-Identifier: Apache-2.0
"""The other processes of a test: forks Pythons that run what the test sends them.

Runs beside the test, or in a guest of the lab, where starting a Python for each peer would take seconds: here
everything is imported once, and no device is ever opened. Frames on standard input and output are a
length of 4 bytes and a pickle. The test asks (number, kind, ...):

    spawn environment   a new peer of that number
    run source, names   in the peer; names stay defined between messages
    get source, names   the value of an expression in the peer
    signal number       to the peer
    stop seconds        every thread of the peer, as a machine does that hangs
    close               end of file for the peer, which then ends

The peer answers run and get with (number, "ok", value) or (number, "error", text); the nursery the rest
with (number, "done", value) or (number, "failed", text), and tells once (number, "exit", status).
"""

from __future__ import annotations

import atexit
import importlib
import os
import pickle
import select
import signal
import struct
import sys
import time
import traceback
from collections.abc import Iterator
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any, BinaryIO

CHUNK = 1 << 16
HEADER = struct.Struct("<I")
Frame = tuple[Any, ...]


class Parser:
    """Cuts a stream into frames."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> Iterator[Frame]:
        self._data += data
        while len(self._data) >= HEADER.size:
            end = HEADER.size + HEADER.unpack_from(self._data)[0]
            if len(self._data) < end:
                return
            frame = pickle.loads(self._data[HEADER.size : end])
            del self._data[:end]
            yield frame


def pack(frame: Frame) -> bytes:
    data = pickle.dumps(frame)
    return HEADER.pack(len(data)) + data


def answer(names: dict[str, Any], kind: str, source: str, variables: dict[str, Any]) -> Any:
    names.update(variables)
    if kind == "get":
        return eval(source, names)
    exec(source, names)
    return None


def live(line: Connection) -> None:
    """A peer's life, until the test is over."""
    names: dict[str, Any] = {}
    while True:
        try:
            request = line.recv()
        except EOFError:
            return
        try:
            reply = ("ok", answer(names, *request))
        except Exception:
            reply = ("error", traceback.format_exc())
        line.send(reply)


def state(thread: Path) -> str:
    """The scheduler's letter for a thread: R, S, T, ...; X for one that has ended."""
    try:
        return (thread / "stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


def stands_still(pid: int) -> bool:
    """Whether a process has stopped: its threads go on for a moment after the signal, and may end then."""
    return all(state(thread) in "TXZ" for thread in Path(f"/proc/{pid}/task").iterdir())


def stop(pid: int, seconds: float) -> None:
    os.kill(pid, signal.SIGSTOP)
    end = time.monotonic() + seconds
    while not stands_still(pid):
        if time.monotonic() > end:
            raise TimeoutError("the peer does not stop")
        time.sleep(0.01)


class Nursery:
    """Forks peers, carries their messages and tells how they end."""

    def __init__(self, output: BinaryIO) -> None:
        self._output = output
        self._pids: dict[int, int] = {}  # by number
        self._lines: dict[int, Connection] = {}  # by number
        self._numbers: dict[int, int] = {}  # by descriptor
        self._poll = select.poll()
        self._parser = Parser()
        self._wake, wake = os.pipe()
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def serve(self) -> Connection | None:
        """Until the test is over: None; in each peer: its line."""
        self._poll.register(0, select.POLLIN)
        self._poll.register(self._wake, select.POLLIN)
        while True:
            for fd, _ in self._poll.poll():
                if fd == 0:
                    data = os.read(0, CHUNK)
                    if not data:
                        return None
                    for number, *request in self._parser.feed(data):
                        line = self._handle(number, *request)
                        if line:
                            return line
                elif fd == self._wake:
                    os.read(fd, CHUNK)
                    self._reap()
                elif fd in self._numbers:
                    self._carry(self._numbers[fd])

    def _tell(self, *frame: Any) -> None:
        self._output.write(pack(frame))
        self._output.flush()

    def _handle(self, number: int, kind: str, *arguments: Any) -> Connection | None:
        if kind == "spawn":
            return self._spawn(number, *arguments)
        if kind == "close":
            self._hang_up(number)
            return None
        try:
            if kind == "signal":
                os.kill(self._pids[number], *arguments)
                self._tell(number, "done", None)
            elif kind == "stop":
                stop(self._pids[number], *arguments)
                self._tell(number, "done", None)
            else:
                self._lines[number].send((kind, *arguments))
        except KeyError:
            pass  # it has ended, as the test was or will be told
        except OSError as error:
            self._tell(number, "failed", f"{kind}: {error!r}")
        return None

    def _spawn(self, number: int, environment: dict[str, str]) -> Connection | None:
        ours, theirs = Pipe()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for line in (ours, *self._lines.values()):
                line.close()
            self._output.close()
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.environ.update(environment)
            return theirs
        theirs.close()
        self._pids[number] = pid
        self._lines[number] = ours
        self._numbers[ours.fileno()] = number
        self._poll.register(ours.fileno(), select.POLLIN)
        self._tell(number, "done", pid)
        return None

    def _carry(self, number: int) -> None:
        try:
            self._tell(number, *self._lines[number].recv())
        except (EOFError, OSError):  # its end is told by _reap
            self._hang_up(number)

    def _hang_up(self, number: int) -> None:
        line = self._lines.pop(number, None)
        if line:
            self._poll.unregister(line.fileno())
            del self._numbers[line.fileno()]
            line.close()

    def _reap(self) -> None:
        for number, pid in list(self._pids.items()):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done == 0:
                continue
            while number in self._lines and self._lines[number].poll():
                self._carry(number)  # what it still said
            self._hang_up(number)
            del self._pids[number]
            self._tell(number, "exit", os.waitstatus_to_exitcode(status))


def only_for_frames(fd: int) -> BinaryIO:
    """The stream of a descriptor that nothing else writes to: print() goes to standard error."""
    stream = os.fdopen(os.dup(fd), "wb")
    os.dup2(2, fd)
    return stream


def main(*modules: str) -> None:
    """Forks peers, for which `modules` are imported once.

    None of those may read its settings from the environment before a peer is forked.
    """
    output = only_for_frames(1)
    for module in modules:
        importlib.import_module(module)
    line = Nursery(output).serve()
    if line:
        live(line)
        # Devices are closed as at any end; to take a forked interpreter apart costs more than a test.
        atexit._run_exitfuncs()
        sys.stderr.flush()
        os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
