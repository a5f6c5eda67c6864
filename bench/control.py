# SPDX-License-Identifier: Apache-2.0
"""The task's end of the line to its launcher; team.py has the other end.

Commands arrive as one JSON object a line on standard input; answers and events leave the same way on
standard output. End of input means that the launcher is gone or wants the task gone: there is no way to
stop a TensorFlow server, so the process exits there and then.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

Message = Mapping[str, Any]


class Line:
    """Talks to the launcher. Any thread may call `emit`; one thread calls `commands`."""

    def __init__(self) -> None:
        # What a library prints goes to the log, so that it does not mix with our messages.
        self._out = os.dup(1)
        os.dup2(2, 1)
        self._lock = threading.Lock()

    def emit(self, kind: str, **fields: Any) -> None:
        """Sends one event. Exits the process if the launcher is gone."""
        data = (json.dumps({"event": kind, **fields}) + "\n").encode()
        with self._lock:
            try:
                while data:
                    data = data[os.write(self._out, data) :]
            except BrokenPipeError:
                leave(1)

    def commands(self) -> Iterator[dict[str, Any]]:
        """Yields the launcher's commands until it closes the line."""
        pending = b""
        while chunk := os.read(0, 65536):
            *lines, pending = (pending + chunk).split(b"\n")
            for line in lines:
                yield json.loads(line)

    def serve(self, handlers: Mapping[str, Callable[..., Message]]) -> None:
        """Answers each command {"do": NAME, ...} with the event NAME. Returns when the line closes.

        An exception of a handler ends the process through the caller, which the launcher reports.
        """
        for command in self.commands():
            name = command.pop("do")
            self.emit(name, **handlers[name](**command))

    def leave_when_closed(self) -> threading.Thread:
        """Watches the line on a thread of its own, for a task whose main thread is busy.

        The thread ends the process; joining it waits for the launcher to close the line.
        """

        def watch() -> None:
            for _ in self.commands():
                pass
            leave(0)

        thread = threading.Thread(target=watch, name="launcher-watch", daemon=True)
        thread.start()
        return thread


def leave(status: int) -> None:
    """Exits at once, without finalisers, because TensorFlow's server threads would outlive them."""
    sys.stderr.flush()
    os._exit(status)
