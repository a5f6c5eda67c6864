# SPDX-License-Identifier: Apache-2.0
"""The hosts of support/network.py: their link has the shape that is asked for, and nothing stays behind."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.network import Network, two_hosts
from support.waits import PATIENCE, until

PORT = 5001


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    with two_hosts() as made:
        yield made


class Line:
    """A TCP connection from the first host to the second."""

    def __init__(self, network: Network) -> None:
        with network.second.inside(), socket.create_server(("", PORT)) as server:
            server.settimeout(PATIENCE)
            with network.first.inside():
                self.here = socket.create_connection((network.second.address, PORT), PATIENCE)
            self.there = server.accept()[0]
        self.there.settimeout(PATIENCE)

    def __enter__(self) -> Line:
        return self

    def __exit__(self, *_: object) -> None:
        self.here.close()
        self.there.close()

    def carry(self, size: int) -> float:
        """The seconds until `size` bytes have arrived."""
        began = time.monotonic()
        sender = threading.Thread(target=self.here.sendall, args=(bytes(size),))
        sender.start()
        while size:
            size -= len(self.there.recv(min(size, 1 << 20)))
        sender.join()
        return time.monotonic() - began


def test_rate_delay_and_loss(network: Network) -> None:
    with Line(network) as line:
        line.carry(1 << 20)
        network.shape(rate="50mbit")
        assert line.carry(2 << 20) > 0.2  # 0.33 s, of which the bucket takes something
        network.shape(delay_ms=50)
        assert line.carry(1) > 0.05
        network.shape(rate="50mbit", delay_ms=50)
        assert line.carry(2 << 20) > 0.25
        network.shape()
        line.carry(1 << 20)
    with network.second.inside(), socket.socket(type=socket.SOCK_DGRAM) as there:
        there.bind(("", PORT))
        there.settimeout(PATIENCE)
        with network.first.inside(), socket.socket(type=socket.SOCK_DGRAM) as here:
            network.shape(loss=0.5)
            for _ in range(200):
                here.sendto(b"lossy", (network.second.address, PORT))
            network.shape(delay_ms=1)
            here.sendto(b"end", (network.second.address, PORT))
            arrived = sum(1 for _ in iter(lambda: there.recv(100), b"end"))
            assert 40 < arrived < 160
    network.shape()


def test_cable(network: Network) -> None:
    with Line(network) as line:
        network.link(False)
        line.here.sendall(b"held")
        line.there.settimeout(0.3)
        with pytest.raises(TimeoutError):
            line.there.recv(4)
        line.there.settimeout(PATIENCE)
        network.link(True)
        assert line.there.recv(4) == b"held"


KILLED = """
import os, subprocess, sys
from support.network import two_hosts
with two_hosts() as network:
    sleeper = subprocess.Popen(network.second.command("sleep", "1000"), start_new_session=True)
    print(network.first.namespace, network.second.namespace, sleeper.pid, flush=True)
    sys.stdin.read()
"""


def test_nothing_stays_behind_a_killed_test(network: Network) -> None:
    test = subprocess.Popen(
        [sys.executable, "-c", KILLED], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with test:
        assert test.stdout is not None
        *namespaces, sleeper = test.stdout.readline().split()
        test.send_signal(signal.SIGKILL)
    until("a process stays", lambda: not Path(f"/proc/{sleeper}").exists())
    for each in namespaces:
        until("a namespace stays", lambda each=each: not Path(f"/run/netns/{each}").exists())
