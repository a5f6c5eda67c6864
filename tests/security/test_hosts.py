# SPDX-License-Identifier: Apache-2.0
"""Between hosts, which two network namespaces are to each other: nobody gets in without a secret."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

import rdmatensor
from security.devices import SECRET, Open, works
from support.bootstrap import Line, Meeting, Refused
from support.network import Network, two_hosts

# A device on the other host, which then connects to what it is told and says how that went.
DEVICE = """
import sys, rdmatensor
with rdmatensor.Device(bind=sys.argv[1]) as device:
    print(device.address, flush=True)
    for line in sys.stdin:
        try:
            device.connect(line.strip(), timeout=20)
            print("connected", flush=True)
        except rdmatensor.RdmaError as error:
            print(error.status, error, flush=True)
"""

# Connects from so many addresses, of as many networks, and says nothing until it is told to end.
STRANGERS = """
import socket, sys
family = socket.AF_INET6 if ":" in sys.argv[2] else socket.AF_INET
held = []
for i in range(int(sys.argv[1])):
    line = socket.socket(family)
    line.setsockopt(socket.IPPROTO_IPV6, 78, 1) if family == socket.AF_INET6 else None  # FREEBIND
    line.bind((sys.argv[4] % i if family == socket.AF_INET6 else f"10.214.{i >> 8}.{i & 255}", 0))
    line.connect((sys.argv[2], int(sys.argv[3])))
    held.append(line)
print("connected", flush=True)
sys.stdin.read()
"""
MANY = 257  # more than there are handshakes at once


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    """Two hosts on a network of their own. The tests are on the first one."""
    with two_hosts() as made, made.first.inside():
        yield made


class OtherHost(NamedTuple):
    process: subprocess.Popen[str]
    address: str

    def connect(self, address: str) -> str:
        """Connects from there; how it went."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(address + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline()


Place = Callable[..., OtherHost]
Setting = Callable[[str, str | int], None]


@pytest.fixture
def other_host(network: Network, secret_file: Callable[[bytes], Path]) -> Iterator[Place]:
    """Opens a device on the other host."""
    with ExitStack() as started:

        def start(secret: bytes = b"", insecure: int = 0, transport: str = "shm") -> OtherHost:
            settings = {
                "RDMATENSOR_TRANSPORTS": transport,
                "RDMATENSOR_SECRET_FILE": str(secret_file(secret)) if secret else "",
                "RDMATENSOR_INSECURE": str(insecure),
            }
            command = network.second.command(sys.executable, "-c", DEVICE, network.second.address)
            process = subprocess.Popen(
                command,
                env={**os.environ, **settings},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            started.enter_context(process)
            assert process.stdin is not None and process.stdout is not None
            started.callback(process.stdin.close)
            return OtherHost(process, process.stdout.readline().strip())

        yield start


@pytest.fixture
def here(network: Network, open_device: Open, setting: Setting) -> Open:
    setting("BIND_ADDRESS", network.first.address)
    return open_device


# Shared memory goes no further than a namespace, and is chosen after secrets: who came so far was let in.
LET_IN = "the peer is in another network namespace of this host"


def test_without_a_secret(network: Network, here: Open, other_host: Place) -> None:
    device, other = here(), other_host()
    with pytest.raises(rdmatensor.ConnectionRefused) as caught:
        device.connect(other.address)
    assert caught.value.status == "REFUSED"
    for words in (
        f"{network.second.address} is another host",
        "RDMATENSOR_SECRET_FILE",
        "RDMATENSOR_INSECURE=1",
    ):
        assert words in str(caught.value)
    assert f"{network.first.address} is another host" in other.connect(device.address)


def test_listening_side_refuses_too(network: Network, here: Open, other_host: Place) -> None:
    """Whatever the connecting side thinks of it."""
    device, other = here(), other_host(insecure=1)
    assert f"refused: {network.second.address} is another host" in other.connect(device.address)
    line = Line(other_host().address)
    with pytest.raises(Refused, match=f"{network.first.address} is another host"):
        Meeting(line).hello()
    line.close()


def test_insecure(network: Network, here: Open, other_host: Place) -> None:
    device, other = here(INSECURE=1), other_host(insecure=1)
    with pytest.raises(rdmatensor.ConnectionRefused, match=LET_IN):
        device.connect(other.address)
    assert LET_IN in other.connect(device.address)


def test_with_a_secret(network: Network, here: Open, other_host: Place) -> None:
    device, other = here(SECRET), other_host(SECRET)
    with pytest.raises(rdmatensor.ConnectionRefused, match=LET_IN):
        device.connect(other.address)
    assert LET_IN in other.connect(device.address)
    lacking = here()
    assert "has a secret, and" in other.connect(lacking.address)


@contextmanager
def strangers(network: Network, address: str, pattern: str = "") -> Iterator[None]:
    """Silent connections from many addresses of the second host."""
    host, _, port = address.rpartition(":")
    arguments = ("-c", STRANGERS, str(MANY), host.strip("[]"), port, pattern)
    command = network.second.command(sys.executable, *arguments)
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        assert process.stdout.readline() == "connected\n"
        yield
        process.stdin.close()


def test_strangers_with_many_addresses(network: Network, here: Open, other_host: Place) -> None:
    """They keep out nobody who has the secret, and nobody's data connections."""
    network.second.run("ip", "route", "add", "local", "10.214.0.0/16", "dev", "lo")
    network.first.run("ip", "route", "add", "10.214.0.0/16", "via", network.second.address)
    device, other = here(SECRET, TRANSPORTS="tcp"), other_host(SECRET, transport="tcp")
    proven = Line(device.address)
    meeting = Meeting(proven, SECRET, transports="tcp")
    meeting.hello()
    meeting.attach("tcp", struct.pack("<IIQ", 1, 64, 1 << 16))
    with strangers(network, device.address):
        for _ in range(3):
            assert other.connect(device.address) == "connected\n"
        with strangers(network, device.address):
            assert other.connect(device.address) == "connected\n"
            proven.socket.setblocking(False)
            with pytest.raises(BlockingIOError):  # it waits for its data connection
                proven.socket.recv(1)
    proven.close()


@pytest.mark.parametrize("pattern", ["fd00:214::1:%x", "fd00:214:0:%x::1"])
def test_strangers_of_ipv6(
    network: Network, here: Open, other_host: Place, setting: Setting, pattern: str
) -> None:
    """One /64, and as many as there are connections."""
    for host, number in ((network.first, 1), (network.second, 2)):
        host.run("ip", "-6", "addr", "add", f"fd00:213::{number}/64", "dev", "eth0", "nodad")
    try:
        network.second.run("ip", "-6", "route", "add", "local", "fd00:214::/32", "dev", "lo")
        network.first.run("ip", "-6", "route", "add", "fd00:214::/32", "via", "fd00:213::2")
        setting("BIND_ADDRESS", "fd00:213::1")
        device, other = here(SECRET, TRANSPORTS="tcp"), other_host(SECRET, transport="tcp")
        with strangers(network, device.address, pattern):
            for _ in range(3):
                assert other.connect(device.address) == "connected\n"
    finally:
        for host in (network.first, network.second):
            host.run("ip", "-6", "addr", "flush", "dev", "eth0", "scope", "global")
            host.run("ip", "-6", "route", "flush", "fd00:214::/32")
            host.run("ip", "-6", "route", "flush", "table", "local", "fd00:214::/32")


def test_own_addresses_are_this_host(here: Open, network: Network) -> None:
    """Also those of a network card, and whatever else was refused."""
    first, second = here(), here()
    assert first.address.startswith(network.first.address)
    assert works(first, second)
