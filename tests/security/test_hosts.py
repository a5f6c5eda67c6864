# SPDX-License-Identifier: Apache-2.0
"""Between hosts, which two network namespaces are to each other: nobody gets in without a secret."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NamedTuple

import pytest

import rdmatensor
from security.devices import SECRET, Open, works
from support.bootstrap import Line, Meeting, Refused

NAMESPACE = f"rdmatensor-{os.getpid()}"
HERE, THERE = "10.213.119.1", "10.213.119.2"
CARD = f"rdt{os.getpid() % 1000000}"
NETWORK = (
    f"netns add {NAMESPACE}",
    f"link add {CARD} type veth peer name other netns {NAMESPACE}",
    f"addr add {HERE}/30 dev {CARD}",
    f"link set {CARD} up",
    f"-n {NAMESPACE} addr add {THERE}/30 dev other",
    f"-n {NAMESPACE} link set other up",
    f"-n {NAMESPACE} link set lo up",
)
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


def ip(command: str) -> None:
    done = subprocess.run(["ip", *command.split()], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"no network namespaces here: ip {command}: {done.stderr.strip()}")


@pytest.fixture(scope="module")
def network() -> Iterator[None]:
    """Two hosts, on a network of their own."""
    try:
        for command in NETWORK:
            ip(command)
        yield
    finally:
        with suppress(OSError):
            subprocess.run(["ip", "netns", "del", NAMESPACE], capture_output=True, check=False)


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


@pytest.fixture
def other_host(network: None, secret_file: Callable[[bytes], Path]) -> Iterator[Place]:
    """Opens a device on the other host."""
    with ExitStack() as started:

        def start(secret: bytes = b"", insecure: int = 0) -> OtherHost:
            settings = {
                "RDMATENSOR_TRANSPORTS": "shm",
                "RDMATENSOR_SECRET_FILE": str(secret_file(secret)) if secret else "",
                "RDMATENSOR_INSECURE": str(insecure),
            }
            command = ["ip", "netns", "exec", NAMESPACE, sys.executable, "-c", DEVICE, THERE]
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
def here(open_device: Open, setting: Callable[[str, str | int], None]) -> Open:
    setting("BIND_ADDRESS", HERE)
    return open_device


# Shared memory goes no further than a namespace, and is chosen after secrets: who came so far was let in.
LET_IN = "the peer is in another network namespace of this host"


def test_without_a_secret(here: Open, other_host: Place) -> None:
    device, other = here(), other_host()
    with pytest.raises(rdmatensor.ConnectionRefused) as caught:
        device.connect(other.address)
    assert caught.value.status == "REFUSED"
    for words in (f"{THERE} is another host", "RDMATENSOR_SECRET_FILE", "RDMATENSOR_INSECURE=1"):
        assert words in str(caught.value)
    assert f"{HERE} is another host" in other.connect(device.address)


def test_listening_side_refuses_too(here: Open, other_host: Place) -> None:
    """Whatever the connecting side thinks of it."""
    device, other = here(), other_host(insecure=1)
    assert f"refused: {THERE} is another host" in other.connect(device.address)
    line = Line(other_host().address)
    with pytest.raises(Refused, match=f"{HERE} is another host"):
        Meeting(line).hello()
    line.close()


def test_insecure(here: Open, other_host: Place) -> None:
    device, other = here(INSECURE=1), other_host(insecure=1)
    with pytest.raises(rdmatensor.ConnectionRefused, match=LET_IN):
        device.connect(other.address)
    assert LET_IN in other.connect(device.address)


def test_with_a_secret(here: Open, other_host: Place) -> None:
    device, other = here(SECRET), other_host(SECRET)
    with pytest.raises(rdmatensor.ConnectionRefused, match=LET_IN):
        device.connect(other.address)
    assert LET_IN in other.connect(device.address)
    lacking = here()
    assert "has a secret, and" in other.connect(lacking.address)


def test_own_addresses_are_this_host(here: Open, network: None) -> None:
    """Also those of a network card, and whatever else was refused."""
    first, second = here(), here()
    assert first.address.startswith(HERE)
    assert works(first, second)
