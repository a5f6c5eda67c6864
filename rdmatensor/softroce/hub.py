# SPDX-License-Identifier: Apache-2.0
"""The network switch of a lab with more than two hosts."""

from __future__ import annotations

import contextlib
import socket
import threading
from pathlib import Path

_LARGEST_FRAME = 65536
_MAC = slice(0, 6)


class Hub:
    """Guests send frames to the unix socket at `path`; one thread forwards them by MAC address.

    `cards` maps MAC addresses to the guests' sockets. A frame for an unknown or broadcast address goes to all
    other guests. A frame is dropped if a guest's socket has no room for it.
    """

    def __init__(self, path: Path, cards: dict[bytes, Path]) -> None:
        self._cards = {mac: str(card) for mac, card in cards.items()}
        self._open = True
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self._thread = threading.Thread(target=self._run, name="lab-hub", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while self._open:
            frame, sender = self._socket.recvfrom(_LARGEST_FRAME)
            target = self._cards.get(frame[_MAC])
            for card in [target] if target else self._cards.values():
                if card != sender:
                    with contextlib.suppress(OSError):
                        self._socket.sendto(frame, socket.MSG_DONTWAIT, card)

    def close(self) -> None:
        """End the thread and close the socket."""
        self._open = False
        self._socket.shutdown(socket.SHUT_RD)
        self._thread.join()
        self._socket.close()
