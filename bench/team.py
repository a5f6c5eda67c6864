# SPDX-License-Identifier: Apache-2.0
"""Starts processes on this machine, talks to them, and always ends them."""

from __future__ import annotations

import contextlib
import json
import queue
import re
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rdmatensor._tools.processes import (
    Crew,
    Process,
    ending,
    free_addresses,
    terminate_like_interrupt,
)

__all__ = [
    "SILENCE_S", "Child", "TaskFailed", "Team", "environment", "free_addresses", "terminate_like_interrupt",
]  # fmt: skip

Event = dict[str, Any]

# The longest silence is that of all tasks importing TensorFlow at once.
SILENCE_S = 120.0
_POLL_S = 0.2
# Tasks import the package that the launcher imports.
_PATH_FLAGS = ["-P"] if getattr(sys.flags, "safe_path", False) else []


def environment(protocol: str) -> dict[str, str]:
    """Return the environment of tasks. With stock gRPC, the plugin is not even loaded."""
    variables = {"CUDA_VISIBLE_DEVICES": "-1", "PYTHONUNBUFFERED": "1"}
    if protocol == "grpc":
        variables["RDMATENSOR_DISABLE"] = "1"
    return variables


class TaskFailed(RuntimeError):
    """A task ended or stayed silent when it should not have. Its output is in `log`."""

    def __init__(self, task: str, reason: str, log: Path) -> None:
        super().__init__(f"{task} {reason}")
        self.task = task
        self.log = log

    def tail(self, lines: int = 40) -> str:
        """Returns the last `lines` lines of the task's log."""
        text = self.log.read_text(errors="replace").splitlines()
        return "\n".join(text[-lines:])


class Child:
    """One process: reads commands and writes events as JSON lines; its other output goes to `log`."""

    def __init__(self, name: str, process: Process, log: Path) -> None:
        self.name = name
        self.log = log
        self._process = process
        self._events: queue.Queue[Event] = queue.Queue()
        threading.Thread(target=self._read, name=f"read-{name}", daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            try:
                # `rdmatensor launch` writes the task's name before each line.
                self._events.put(json.loads(re.sub(rb"^\[\w+ \d+\] ", b"", line)))
            except ValueError:
                with self.log.open("ab") as log_file:
                    log_file.write(line)

    def send(self, command: str, **fields: Any) -> None:
        """Sends {"do": command, ...}. If the task is gone, the next wait reports it."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write((json.dumps({"do": command, **fields}) + "\n").encode())
            self._process.stdin.flush()

    def poll_event(self, timeout: float) -> Event | None:
        """Returns the next event, or None after `timeout` seconds."""
        try:
            return self._events.get(timeout=timeout)
        except queue.Empty:
            return None

    def exit_status(self) -> int | None:
        """The exit status, which is negative if a signal ended the process. None while it runs."""
        return self._process.poll()


def _hang_up(process: Process) -> None:
    """Asks a task to end."""
    assert process.stdin is not None
    with contextlib.suppress(OSError):
        process.stdin.close()


class Team:
    """Processes that live and die together. The context manager leaves none behind.

    Not thread-safe. Logs are `log_dir`/NAME.log.
    """

    def __init__(self, log_dir: Path) -> None:
        self._log_dir = log_dir
        self._children: list[Child] = []
        self._crew = Crew()

    def __enter__(self) -> Team:
        return self

    def __exit__(self, *_: object) -> None:
        with self._crew:
            self.stop()

    def start(
        self,
        name: str,
        argv: Sequence[str],
        env: Mapping[str, str] | None = None,
        before: Sequence[str] = (),
    ) -> Child:
        """Runs this Python with `argv`, and with `env` added to this process's environment.

        The command begins with `before`, which may take the process to another network namespace.
        """
        log = self._log_dir / f"{name}.log"
        with log.open("wb") as log_file:
            command = [*before, sys.executable, *_PATH_FLAGS, *argv]
            process = self._crew.run(command, env or {}, log_file.fileno())
        child = Child(name, process, log)
        self._children.append(child)
        return child

    def wait(self, child: Child, kind: str, timeout: float) -> Event:
        """Returns the next event of `child`, which must be `kind`. Raises what `next_event` raises."""
        event = self.next_event(child, timeout)
        if event.get("event") != kind:
            raise TaskFailed(child.name, f"sent {event} instead of {kind!r}", child.log)
        return event

    def ask(self, child: Child, command: str, timeout: float = 60.0, **fields: Any) -> Event:
        """Sends a command and returns its answer, the event of the same name."""
        child.send(command, **fields)
        return self.wait(child, command, timeout)

    def next_event(self, child: Child, timeout: float) -> Event:
        """Returns the next event of `child`. TaskFailed after `timeout` seconds, or if any task ends."""
        deadline = time.monotonic() + timeout
        while True:
            event = child.poll_event(_POLL_S)
            if event is not None:
                return event
            for other in self._children:
                status = other.exit_status()
                # Events that a task sent before it ended come first.
                if status is not None and (event := child.poll_event(_POLL_S)) is not None:
                    return event
                if status is not None:
                    raise TaskFailed(other.name, ending(status), other.log)
            if time.monotonic() > deadline:
                raise TaskFailed(child.name, f"said nothing for {timeout:.0f} s", child.log)

    def stop(self) -> None:
        """Ends every task, and kills those that do not end by themselves."""
        self._crew.stop(_hang_up)
        self._children.clear()
