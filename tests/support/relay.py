# SPDX-License-Identifier: Apache-2.0
"""Somebody on the way between two devices: passes on what each sends, keeps it, and changes it on demand."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress

# Gets the direction ("there" from who connected, "back"), how many bytes passed in it before on this
# connection, and the next ones; returns what is passed on instead. None ends the connection.
Edit = Callable[[str, int, bytes], bytes | None]


class Relay:
    """Listens on `address`, and makes a connection to `target` for each that it gets."""

    def __init__(self, target: str, edit: Edit = lambda _, __, data: data) -> None:
        self._target = target
        self.edit = edit
        self.said = {"there": bytearray(), "back": bytearray()}
        self.connections = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._open: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._listen)]
        self._threads[0].start()

    def _listen(self) -> None:
        while True:
            try:
                ours, _ = self._listener.accept()
            except OSError:
                return
            host, _, port = self._target.rpartition(":")
            theirs = socket.create_connection((host, int(port)))
            self.connections += 1
            self._open += [ours, theirs]
            for way, source, sink in (("there", ours, theirs), ("back", theirs, ours)):
                thread = threading.Thread(target=self._pass, args=(way, source, sink))
                self._threads.append(thread)
                thread.start()

    def _pass(self, way: str, source: socket.socket, sink: socket.socket) -> None:
        passed = 0
        with suppress(OSError):
            while data := source.recv(1 << 20):
                self.said[way] += data
                edited = self.edit(way, passed, data)
                passed += len(data)
                if edited is None:
                    break
                sink.sendall(edited)
        for each in (source, sink):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Ends all connections."""
        for each in [self._listener, *self._open]:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join()
        for each in self._open:
            each.close()
