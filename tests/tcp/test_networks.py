# SPDX-License-Identifier: Apache-2.0
"""tcp between two network namespaces: what a peer sees of a network that is slow, cut or gone."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rdmatensor
from support.peers import LocalNursery, Peer
from support.waits import AT_ONCE, PATIENCE

MB = 1 << 20
DEADLINE_MS = 3000


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=PATIENCE)


class Network:
    """A namespace that a pair of interfaces joins to this one."""

    def __init__(self, number: int) -> None:
        self.space = f"rdmatensor-{number}"
        self.link, self._far = f"rdtn{number}", f"rdtf{number}"
        subnet = f"198.18.{number % 256}"  # for benchmarks and tests (RFC 2544)
        self.near, self.far = f"{subnet}.1", f"{subnet}.2"
        ip("netns", "add", self.space)
        ip("link", "add", self.link, "type", "veth", "peer", self._far, "netns", self.space)
        ip("address", "add", f"{self.near}/24", "dev", self.link)
        ip("link", "set", self.link, "up")
        self.inside("ip", "address", "add", f"{self.far}/24", "dev", self._far)
        self.inside("ip", "link", "set", self._far, "up")
        self.inside("ip", "link", "set", "lo", "up")

    def inside(self, *words: str) -> None:
        ip("netns", "exec", self.space, *words)

    def slow(self, rate: str) -> None:
        """From here to there."""
        shaped = ("root", "tbf", "rate", rate, "burst", "64kb", "latency", "100ms")
        subprocess.run(["tc", "qdisc", "add", "dev", self.link, *shaped], check=True)

    def cut(self, down: bool) -> None:
        """At the far end, so that this end keeps its address and route."""
        self.inside("ip", "link", "set", self._far, "down" if down else "up")

    def close(self) -> None:
        subprocess.run(["ip", "link", "delete", self.link], capture_output=True, timeout=PATIENCE)
        subprocess.run(["ip", "netns", "delete", self.space], capture_output=True, timeout=PATIENCE)


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    if os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("tc"):
        pytest.skip("only root can make network namespaces, with ip and tc")
    try:
        made = Network(os.getpid() % 10000)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no network namespaces here: {error.stderr.decode().strip()}")
    yield made
    made.close()


@pytest.fixture
def far(
    network: Network,
    tmp_path: Path,
    setting: Callable[[str, str | int], None],
) -> Iterator[Peer]:
    """A peer beyond the network, with a device. This process has the same settings."""
    secret = tmp_path / "secret"
    secret.write_bytes(os.urandom(32).hex().encode())
    secret.chmod(0o600)
    settings = {
        "TRANSPORTS": "tcp",
        "SECRET_FILE": str(secret),
        "DEADLINE_MS": str(DEADLINE_MS),
        "CONNECT_TIMEOUT_MS": "30000",
    }
    for name, value in settings.items():
        setting(name, value)
    nursery = LocalNursery(["ip", "netns", "exec", network.space])
    variables = {f"RDMATENSOR_{name}": value for name, value in settings.items()}
    peer = nursery.spawn({**variables, "RDMATENSOR_BIND_ADDRESS": network.far}, device="")
    yield peer
    peer.close()
    nursery.close()


@pytest.fixture
def remote(far: Peer) -> Iterator[rdmatensor.RemoteDevice]:
    far.run("memory = device.allocate(8 << 20, name='memory')")
    with rdmatensor.Device() as device:
        yield device.connect(far.address)


@pytest.fixture
def region(remote: rdmatensor.RemoteDevice) -> rdmatensor.RemoteRegion:
    return remote.region("memory")


def outcome(call: Callable[[], Any]) -> tuple[BaseException, float]:
    begin = time.monotonic()
    with pytest.raises(rdmatensor.RdmaError) as caught:
        call()
    return caught.value, time.monotonic() - begin


def test_slow_network_loses_nothing(
    network: Network, region: rdmatensor.RemoteRegion, note: Any
) -> None:
    """It takes longer than the deadline: what moves is no fault."""
    network.slow("10mbit")
    content = np.arange(5 * MB // 8).view(np.uint8)
    begin = time.monotonic()
    region.write(content).wait(PATIENCE)
    assert time.monotonic() - begin > DEADLINE_MS / 1000
    assert (region.read()[: 5 * MB] == content).all()
    note("slow network", "nothing", None, "everything, at 10 Mbit/s", "tcp")
    subprocess.run(["tc", "qdisc", "delete", "dev", network.link, "root"], check=True)


def test_link_down_for_a_moment(
    network: Network, region: rdmatensor.RemoteRegion, note: Any
) -> None:
    network.cut(True)
    transfers = [region.write(np.full(MB, number, np.uint8), number * MB) for number in range(4)]
    timer = threading.Timer(DEADLINE_MS / 6000, network.cut, [False])
    timer.start()
    for transfer in transfers:
        transfer.wait(PATIENCE)
    timer.join()
    assert region.read()[: 4 * MB : MB].tolist() == [0, 1, 2, 3]
    note(
        "link down for a moment",
        "nothing",
        None,
        "everything, including transfers in progress",
        "tcp",
    )


def test_link_down_for_long(network: Network, region: rdmatensor.RemoteRegion, note: Any) -> None:
    network.cut(True)
    error, took = outcome(lambda: region.write(bytes(MB)).wait(PATIENCE))
    network.cut(False)
    assert isinstance(error, rdmatensor.ConnectionLost), error
    assert took < DEADLINE_MS / 1000 + AT_ONCE
    note("link down for long", error, took, "peers on other paths; connect again", "tcp")


def test_idle_connection_notices(network: Network, remote: rdmatensor.RemoteDevice) -> None:
    """The heartbeat finds that there is nobody, while nothing is sent."""
    network.cut(True)
    end = time.monotonic() + 2 * DEADLINE_MS / 1000 + AT_ONCE
    while remote.up and time.monotonic() < end:
        time.sleep(0.05)
    network.cut(False)
    assert not remote.up


def test_host_gone(network: Network, region: rdmatensor.RemoteRegion, note: Any) -> None:
    """With its interface, its address and its processes. The last test: it takes the network along."""
    transfers = [region.write(bytes(MB)) for _ in range(8)]
    network.close()

    def wait() -> None:
        for each in [*transfers, region.write(b"?")]:
            each.wait(PATIENCE)

    error, took = outcome(wait)
    assert isinstance(error, rdmatensor.ConnectionLost), error
    note("host killed", error, took, "other peers; the host can return", "tcp")
