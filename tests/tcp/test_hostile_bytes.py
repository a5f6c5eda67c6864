# SPDX-License-Identifier: Apache-2.0
"""What comes over a data connection is checked: the channel ends, and nothing else."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

import rdmatensor
from support.waits import AT_ONCE, PATIENCE, until


class Between:
    """Carries connections to `address`, and bytes of its own on those of data."""

    def __init__(self, address: str) -> None:
        self._target = address.rpartition(":")
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._server.getsockname()[1]}"
        self.data: list[tuple[socket.socket, socket.socket]] = []  # to the client, to the server
        self._threads: list[threading.Thread] = []
        self._run(self._accept)

    def _run(self, call: Callable[..., None], *arguments: Any) -> None:
        self._threads.append(threading.Thread(target=call, args=arguments))
        self._threads[-1].start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near = self._server.accept()[0]
                far = socket.create_connection((self._target[0], int(self._target[2])), PATIENCE)
                far.settimeout(None)
                self.data.append((near, far))
                self._run(self._carry, near, far)
                self._run(self._carry, far, near)

    def _carry(self, source: socket.socket, to: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                to.sendall(data)
        with suppress(OSError):
            to.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        for pair in self.data:
            for each in pair:
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(PATIENCE)
        for pair in self.data:
            for each in pair:
                each.close()


@pytest.fixture
def server(setting: Callable[[str, str | int], None]) -> Iterator[rdmatensor.Device]:
    setting("TRANSPORTS", "tcp")
    setting("QUEUE_PAIRS", 2)
    with rdmatensor.Device(name="server") as device:
        device.allocate(4096, name="memory")
        yield device


HEADERS = {
    "no frame": b"\xff" * 32,
    "a frame of no kind": bytes([77]) + bytes(31),
    "an answer to nothing": bytes([7, 0, 0, 0]) + bytes(20) + b"\xff" * 8,
    "data that nobody asked for": bytes([6, 0, 0, 0, 8]) + bytes(35),
    "too long a body": bytes([1, 0, 0, 0]) + b"\xff" * 4 + bytes(24),
    "a fence on the wrong stream": bytes([4, 0, 0, 0]) + bytes(4) + b"\xff" * 4 + bytes(20),
}


@pytest.mark.parametrize("what", HEADERS)
@pytest.mark.parametrize("towards", ["client", "server"])
def test_channel_ends_and_others_go_on(
    server: rdmatensor.Device, what: str, towards: str, note: Any
) -> None:
    between = Between(server.address)
    try:
        with rdmatensor.Device(name="client") as client:
            victim, other = client.connect(between.address), client.connect(server.address)
            region = other.region("memory")
            victim.region("memory").write(b"fine").wait(PATIENCE)
            between.data[-1][0 if towards == "client" else 1].sendall(HEADERS[what])
            until("nobody noticed", lambda: not victim.up, AT_ONCE)
            with pytest.raises(rdmatensor.ConnectionLost) as caught:
                victim.notify(b"?").wait(PATIENCE)
            region.write(b"good").wait(PATIENCE)
            assert bytes(region.read(0, 4)) == b"good"
            if (what, towards) == ("no frame", "client"):
                note("hostile bytes", caught.value, None, "other peers; connect again", "tcp")
    finally:
        between.close()
