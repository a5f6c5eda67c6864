# SPDX-License-Identifier: Apache-2.0
"""The child's end of the line between a launcher and its tasks (see launch.py for the other end).

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
    """Talks to the launcher. `emit` may be called from any thread; `commands` from one."""

    def __init__(self) -> None:
        # Whatever a library prints must not end up between our messages: it goes to the log instead.
        self._out = os.dup(1)
        os.dup2(2, 1)
        self._lock = threading.Lock()

    def emit(self, kind: str, **fields: Any) -> None:
        """Send one event; exits the process when the launcher is gone."""
        data = (json.dumps({"event": kind, **fields}) + "\n").encode()
        with self._lock:
            try:
                while data:
                    data = data[os.write(self._out, data) :]
            except BrokenPipeError:
                leave(1)

    def commands(self) -> Iterator[dict[str, Any]]:
        """The launcher's commands, until it closes the line."""
        pending = b""
        while chunk := os.read(0, 65536):
            *lines, pending = (pending + chunk).split(b"\n")
            for line in lines:
                yield json.loads(line)

    def serve(self, handlers: Mapping[str, Callable[..., Message]]) -> None:
        """Answer each command {"do": NAME, ...} with the event NAME; returns when the line closes.

        An exception of a handler ends the process through the caller, which the launcher reports.
        """
        for command in self.commands():
            name = command.pop("do")
            self.emit(name, **handlers[name](**command))

    def leave_when_closed(self) -> threading.Thread:
        """Watch the line from a thread of its own, for a task whose main thread is busy.

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
    """Exit now, without running finalisers: TensorFlow's server threads would outlive them."""
    sys.stderr.flush()
    os._exit(status)
