# SPDX-License-Identifier: Apache-2.0
"""Children that are forked while connections are being made do not hide the death of their parent."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from support.bootstrap import Line, Meeting

PATIENCE = 60.0
# It is about forks and sockets, and a Python that starts takes seconds in a guest.
pytestmark = pytest.mark.any_transport
WITHOUT_SECRET = {"RDMATENSOR_SECRET_FILE": "", "RDMATENSOR_ENCRYPT": "off"}
# Opens a device, connects to what it is told, and forks when it is told to. The child lives until standard
# input ends, and touches nothing.
PARENT = """
import os, sys, threading, rdmatensor
device = rdmatensor.Device()
print(device.address, flush=True)
for line in sys.stdin:
    word, _, address = line.strip().partition(" ")
    if word == "connect":
        threading.Thread(target=device.connect, args=(address, 1000), daemon=True).start()
    else:
        child = os.fork()
        if child == 0:
            while os.read(0, 1):
                pass
            os._exit(0)
        print(child, flush=True)
"""


class Parent:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdin is not None and process.stdout is not None
        self.process, self._in, self._out = process, process.stdin, process.stdout
        self.address = self._out.readline().strip()

    def tell(self, what: str) -> None:
        self._in.write(what + "\n")
        self._in.flush()

    def fork_and_die(self) -> int:
        """Leaves the child, whose process id it returns."""
        self.tell("fork")
        child = int(self._out.readline())
        self.process.kill()
        self.process.wait(PATIENCE)
        return child


@pytest.fixture
def parent() -> Iterator[Parent]:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT],
        # The strangers of these tests have no secret.
        env={**os.environ, **WITHOUT_SECRET, "RDMATENSOR_TRANSPORTS": "shm"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        yield Parent(process)
        process.kill()


def hears_the_end(line: socket.socket) -> bool:
    """Whether the other end hangs up, while the child is there."""
    line.settimeout(PATIENCE)
    try:
        while line.recv(4096):
            pass
    except ConnectionResetError:
        return True
    except TimeoutError:
        return False
    return True


def check(parent: Parent, line: socket.socket) -> None:
    child = parent.fork_and_die()
    assert hears_the_end(line), "the child keeps the parent's socket open"
    os.kill(child, 0)  # it lives, and would have kept it


@contextmanager
def half_met(address: str) -> Iterator[socket.socket]:
    """A stranger that said HELLO, got one, and says no more."""
    line = Line(address)
    try:
        Meeting(line).hello()
        yield line.socket
    finally:
        line.close()


def test_who_is_being_let_in(parent: Parent) -> None:
    with half_met(parent.address) as line:
        check(parent, line)


def test_who_is_being_let_in_over_the_unix_socket(parent: Parent) -> None:
    line = Line(parent.address)
    name = Meeting(line).hello()["local_name"]
    line.close()
    with half_met(name) as local:
        check(parent, local)


def test_who_is_being_connected_to(parent: Parent) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(PATIENCE)
        host, port = listener.getsockname()
        parent.tell(f"connect {host}:{port}")
        line, _ = listener.accept()
        with line:
            line.settimeout(PATIENCE)
            assert line.recv(4), "it begins to say HELLO"
            check(parent, line)
