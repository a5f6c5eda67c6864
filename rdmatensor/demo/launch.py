# SPDX-License-Identifier: Apache-2.0
"""Starts a group of processes on this machine, talks to them, and always takes them down again."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

Event = dict[str, Any]

_POLL_S = 0.2
_GRACE_S = 3.0
# Tasks import from where the launcher does.
_PATH_FLAGS = ["-P"] if getattr(sys.flags, "safe_path", False) else []


class TaskFailed(RuntimeError):
    """A task ended, or stayed silent, when it should not have; `log` is where its output went."""

    def __init__(self, task: str, reason: str, log: Path) -> None:
        super().__init__(f"{task} {reason}")
        self.task = task
        self.log = log

    def tail(self, lines: int = 40) -> str:
        """The last `lines` lines of the task's log."""
        text = self.log.read_text(errors="replace").splitlines()
        return "\n".join(text[-lines:])


class Child:
    """One process: commands go in as JSON lines, events come out as JSON lines, the rest to `log`."""

    def __init__(self, name: str, argv: Sequence[str], env: Mapping[str, str], log: Path) -> None:
        self.name = name
        self.log = log
        self._events: queue.Queue[Event] = queue.Queue()
        with log.open("wb") as log_file:
            # A session of its own: Ctrl-C reaches the launcher only, which then takes the tasks down.
            self._process = subprocess.Popen(
                [sys.executable, *_PATH_FLAGS, *argv],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log_file,
                env={**os.environ, **env},
                start_new_session=True,
            )
        threading.Thread(target=self._read, name=f"read-{name}", daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            try:
                self._events.put(json.loads(line))
            except ValueError:
                with self.log.open("ab") as log_file:
                    log_file.write(line)

    def send(self, command: str, **fields: Any) -> None:
        """Send {"do": command, ...}; a task that is gone is found out by the next wait."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write((json.dumps({"do": command, **fields}) + "\n").encode())
            self._process.stdin.flush()

    def poll_event(self, timeout: float) -> Event | None:
        """The next event, or None after `timeout` seconds."""
        try:
            return self._events.get(timeout=timeout)
        except queue.Empty:
            return None

    def exit_status(self) -> int | None:
        """The exit status (negative: the signal that ended it), None while it runs."""
        return self._process.poll()

    def close(self) -> None:
        """Ask the task to leave by closing its standard input."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()

    def reap(self, deadline: float) -> None:
        """Wait for the end until `deadline` (time.monotonic), then kill."""
        try:
            self._process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Team:
    """Processes that live and die together: a context manager that leaves none behind.

    Not thread-safe. Logs are `log_dir`/NAME.log.
    """

    def __init__(self, log_dir: Path) -> None:
        self._log_dir = log_dir
        self._children: list[Child] = []

    def __enter__(self) -> Team:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self, name: str, argv: Sequence[str], env: Mapping[str, str] | None = None) -> Child:
        """Run this Python with `argv` and, on top of this process's environment, `env`."""
        child = Child(name, argv, env or {}, self._log_dir / f"{name}.log")
        self._children.append(child)
        return child

    def wait(self, child: Child, kind: str, timeout: float) -> Event:
        """The next event of `child`, which must be `kind`. TaskFailed as for `next_event`."""
        event = self.next_event(child, timeout)
        if event.get("event") != kind:
            raise TaskFailed(child.name, f"sent {event} instead of {kind!r}", child.log)
        return event

    def ask(self, child: Child, command: str, timeout: float = 60.0, **fields: Any) -> Event:
        """Send a command and wait for its answer, the event of the same name."""
        child.send(command, **fields)
        return self.wait(child, command, timeout)

    def next_event(self, child: Child, timeout: float) -> Event:
        """The next event of `child`; TaskFailed if none comes in `timeout` s or any task ends."""
        deadline = time.monotonic() + timeout
        while True:
            event = child.poll_event(_POLL_S)
            if event is not None:
                return event
            for other in self._children:
                status = other.exit_status()
                # What a task said before it ended comes first.
                if status is not None and (event := child.poll_event(_POLL_S)) is not None:
                    return event
                if status is not None:
                    raise TaskFailed(other.name, _ending(status), other.log)
            if time.monotonic() > deadline:
                raise TaskFailed(child.name, f"said nothing for {timeout:.0f} s", child.log)

    def stop(self) -> None:
        """Take every task down; those that do not leave by themselves are killed."""
        for child in self._children:
            child.close()
        deadline = time.monotonic() + _GRACE_S
        for child in self._children:
            child.reap(deadline)
        self._children.clear()


def _ending(status: int) -> str:
    if status < 0:
        return f"was ended by {signal.Signals(-status).name}"
    return f"exited with status {status}"


def free_addresses(count: int) -> list[str]:
    """`count` different "localhost:PORT" that nobody listens on.

    The ports lie below the range from which the kernel serves outgoing connections, so none is taken
    between now and the moment a server binds it, unless another program asks for that very number.
    """
    ports: list[int] = []
    for port in random.SystemRandom().sample(range(10000, 32000), 22000):
        if len(ports) == count:
            break
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            ports.append(port)
    return [f"localhost:{port}" for port in ports]


@contextlib.contextmanager
def terminate_like_interrupt() -> Iterator[None]:
    """Within the block SIGTERM and SIGHUP unwind the stack as Ctrl-C does, so that tasks are taken down."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt(signal.Signals(number).name)

    before = {
        number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
