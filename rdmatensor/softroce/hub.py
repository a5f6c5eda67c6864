# SPDX-License-Identifier: Apache-2.0
"""The network of more than two hosts: a switch of unix datagram sockets."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
from pathlib import Path

_FRAME = 65536
_BROADCAST_BIT = 1


class Hub:
    """Port i is a socket at paths[i]; frames from the guest there go where their MAC address lives.

    One thread. A frame that a guest's socket has no room for is dropped, as by a switch.
    """

    def __init__(self, paths: list[Path]) -> None:
        self._ports: list[socket.socket] = []
        self._where: dict[bytes, tuple[socket.socket, str]] = {}  # MAC: port and the guest's socket
        self._selector = selectors.DefaultSelector()
        self._stop, wake = socket.socketpair()
        self._selector.register(wake, selectors.EVENT_READ)
        self._wake = wake
        for path in paths:
            port = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            port.setblocking(False)
            port.bind(str(path))
            self._ports.append(port)
            self._selector.register(port, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name="lab-hub", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._wake:
                    return
                assert isinstance(key.fileobj, socket.socket)
                with contextlib.suppress(OSError):
                    self._forward(key.fileobj)

    def _forward(self, port: socket.socket) -> None:
        frame, sender = port.recvfrom(_FRAME)
        target, source = frame[:6], frame[6:12]
        self._where[source] = (port, sender)
        known = self._where.get(target)
        if known and not target[0] & _BROADCAST_BIT:
            self._send(frame, *known)
            return
        for mac, (other, path) in self._where.items():
            if mac != source:
                self._send(frame, other, path)

    @staticmethod
    def _send(frame: bytes, port: socket.socket, path: str) -> None:
        with contextlib.suppress(OSError):
            port.sendto(frame, path)

    def close(self) -> None:
        """Ends the thread and closes the sockets."""
        self._stop.close()
        self._thread.join()
        self._selector.close()
        for each in (self._wake, *self._ports):
            each.close()
