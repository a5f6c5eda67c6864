# SPDX-License-Identifier: Apache-2.0
"""A task that moves a step's bytes over bare sockets, with one thread at each end.

It shows what the kernel alone takes for them on this network, which limits any transport over sockets. Task 1
sends from one buffer as long as the step, and task 0, which is the client, receives into another.
"""

from __future__ import annotations

import mmap
import selectors
import socket
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from tf_cases import MIB, Case
from tf_task import Handlers, commands_of, serve

SOCKETS = 2
_SIZE_BYTES = 8


def _buffer(size: int) -> memoryview:
    """Memory that the kernel has given out already."""
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE)
    return memoryview(memory)


class _Moves:
    """The sockets of one end, which move a buffer's next bytes whenever they can."""

    def __init__(self, sockets: list[socket.socket], size: int, sends: bool) -> None:
        self._buffer = _buffer(size)
        self._selector = selectors.DefaultSelector()
        event = selectors.EVENT_WRITE if sends else selectors.EVENT_READ
        for each in sockets:
            each.setblocking(False)
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            move: Callable[[memoryview], int] = each.send if sends else each.recv_into
            self._selector.register(each, event, move)

    def step(self) -> None:
        """Move the whole buffer. ConnectionError if the other end is gone."""
        at = 0
        while at < len(self._buffer):
            for key, _ in self._selector.select():
                piece = self._buffer[at : at + MIB]
                try:
                    moved = key.data(piece) if len(piece) else 0
                except BlockingIOError:
                    continue
                if moved == 0 < len(piece):
                    raise ConnectionError("the other end has closed a socket")
                at += moved


def _send(listener: socket.socket) -> None:
    """Serve clients one after another: a step for each byte that one sends."""
    while True:
        asks = listener.accept()[0]
        size = int.from_bytes(asks.recv(_SIZE_BYTES, socket.MSG_WAITALL), "little")
        moves = _Moves([listener.accept()[0] for _ in range(SOCKETS)], size, sends=True)
        while asks.recv(1):
            moves.step()


class Client:
    """Runs one case at a time."""

    def __init__(self, host: str, port: str) -> None:
        self._address = host, int(port)
        self._sockets: list[socket.socket] = []
        self._moves: _Moves | None = None

    def transfer(self, **case: Any) -> Mapping[str, Any]:
        """Connect for a case."""
        size = Case(**case).step_bytes
        self._sockets = [socket.create_connection(self._address)]
        self._sockets[0].sendall(size.to_bytes(_SIZE_BYTES, "little"))
        self._sockets += [socket.create_connection(self._address) for _ in range(SOCKETS)]
        self._moves = _Moves(self._sockets[1:], size, sends=False)
        return {}

    def block(self, steps: int) -> Mapping[str, Any]:
        """Time `steps` steps."""
        assert self._moves is not None
        seconds = []
        for _ in range(steps):
            start = time.perf_counter()
            self._sockets[0].sendall(b"+")
            self._moves.step()
            seconds.append(time.perf_counter() - start)
        return {"seconds": seconds, "losses": [], "steps": steps}

    def close(self) -> Mapping[str, Any]:
        """Disconnect, and free the buffer."""
        self._moves = None
        for each in self._sockets:
            each.close()
        return {}


def _start(cluster: dict[str, list[str]], job: str, index: int, protocol: str) -> Handlers:
    host, _, port = cluster[job][1].rpartition(":")
    if index == 0:
        return commands_of(Client(host, port))
    listener = socket.create_server((host, int(port)))
    threading.Thread(target=_send, args=(listener,), daemon=True).start()
    return {}


if __name__ == "__main__":
    serve(_start)
