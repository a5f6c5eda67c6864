# SPDX-License-Identifier: Apache-2.0
"""tcp between two network namespaces: what a peer sees of a network that is slow, cut or gone."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rdmatensor
from rdmatensor._tools.roles import Role, device_of
from support.network import CARD, Network, two_hosts
from support.peers import LocalNursery, Peer
from support.waits import AT_ONCE, PATIENCE

MB = 1 << 20
DEADLINE_MS = 3000


@pytest.fixture(scope="module")
def hosts() -> Iterator[Network]:
    with two_hosts() as network:
        yield network


@pytest.fixture
def network(hosts: Network) -> Iterator[Network]:
    """The test runs on its first host."""
    with hosts.first.inside():
        yield hosts
    with suppress(subprocess.CalledProcessError):  # a test may have removed the link
        hosts.shape()


@pytest.fixture
def far(
    network: Network,
    tmp_path: Path,
    setting: Callable[[str, str | int], None],
) -> Iterator[Peer]:
    """A peer on the second host, with a device. This process has the same settings."""
    secret = tmp_path / "secret"
    secret.write_bytes(os.urandom(32).hex().encode())
    secret.chmod(0o600)
    settings = {
        "TRANSPORTS": "tcp",
        "SECRET_FILE": str(secret),
        "DEADLINE_MS": str(DEADLINE_MS),
    }
    for name, value in settings.items():
        setting(name, value)
    nursery = LocalNursery(network.second.command())
    variables = {f"RDMATENSOR_{name}": value for name, value in settings.items()}
    address = network.second.address
    peer = nursery.spawn({**variables, "RDMATENSOR_BIND_ADDRESS": address}, device="")
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
    network.shape(rate="10mbit")
    content = np.arange(5 * MB // 8).view(np.uint8)
    begin = time.monotonic()
    region.write(content).wait(PATIENCE)
    assert time.monotonic() - begin > DEADLINE_MS / 1000
    network.shape()
    assert (region.read()[: 5 * MB] == content).all()
    note("slow network", "nothing", None, "everything, at 10 Mbit/s", "tcp")


@pytest.mark.parametrize("percent", [1, 5])
def test_lost_packets(
    network: Network, region: rdmatensor.RemoteRegion, percent: int, note: Any
) -> None:
    network.shape(loss=percent / 100)
    check_both_ways(region)
    if percent == 5:
        note("packets lost", "nothing", None, "everything, with 5 % lost at random", "tcp")


def test_delayed_packets(network: Network, region: rdmatensor.RemoteRegion, note: Any) -> None:
    network.shape(delay_ms=50)
    begin = time.monotonic()
    region.write(b"?").wait(PATIENCE)
    assert time.monotonic() - begin > 0.1, "there and back"
    check_both_ways(region)
    note("packets delayed", "nothing", None, "everything, with 50 ms of delay each way", "tcp")


def check_both_ways(region: rdmatensor.RemoteRegion) -> None:
    """Short writes and long ones, in order; then all of it comes back."""
    content = np.random.default_rng(1).integers(0, 256, 4 * MB, np.uint8)
    pieces = [slice(at, at + 100) for at in range(0, 10000, 100)] + [slice(10000, 4 * MB)]
    for transfer in [region.write(content[piece], piece.start) for piece in pieces]:
        transfer.wait(PATIENCE)
    back = np.empty_like(content)
    region.read_into(back).wait(PATIENCE)
    assert (back == content).all()


def test_link_down_for_a_moment(
    network: Network, region: rdmatensor.RemoteRegion, note: Any
) -> None:
    network.link(False)
    transfers = [region.write(np.full(MB, number, np.uint8), number * MB) for number in range(4)]
    timer = threading.Timer(DEADLINE_MS / 6000, network.link, [True])
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
    network.link(False)
    error, took = outcome(lambda: region.write(bytes(MB)).wait(PATIENCE))
    network.link(True)
    assert isinstance(error, rdmatensor.ConnectionLost), error
    assert took < DEADLINE_MS / 1000 + AT_ONCE
    note("link down for long", error, took, "peers on other paths; connect again", "tcp")


def test_idle_connection_notices(network: Network, remote: rdmatensor.RemoteDevice) -> None:
    """The heartbeat finds that there is nobody, while nothing is sent."""
    network.link(False)
    end = time.monotonic() + 2 * DEADLINE_MS / 1000 + AT_ONCE
    while remote.up and time.monotonic() < end:
        time.sleep(0.05)
    network.link(True)
    assert not remote.up


def test_half_open_connection(
    network: Network, far: Peer, region: rdmatensor.RemoteRegion, note: Any
) -> None:
    """The peer's end is gone, and no packet said so: the peer's host answers the next one."""
    network.link(False)
    far.kill()
    network.link(True)
    error, took = outcome(lambda: region.write(b"?").wait(PATIENCE))
    assert isinstance(error, rdmatensor.ConnectionLost), error
    assert took < DEADLINE_MS / 1000 + AT_ONCE
    note("half-open connection", error, took, "other peers; connect again", "tcp")


def test_process_listens_where_others_reach_it(
    network: Network, setting: Callable[[str, str | int], None]
) -> None:
    """A process that trains with others opens its device at the address that a launcher has told, or else in
    the network of rank 0; BIND_ADDRESS changes that."""
    here, there = network.first.address, f"{network.second.address}:2000"
    roles = {
        "rank 0": Role(0, 2, f"{here}:2001", 0, "test"),
        "told": Role(1, 2, there, 0, "test", (there, f"{here}:2001")),
        "not told": Role(1, 2, there, 0, "test"),
        "told what others know it by": Role(1, 2, there, 0, "test", (there, "192.0.2.1:2001")),
        "told a name": Role(1, 2, there, 0, "test", (there, "unheard.invalid:2001")),
    }
    listens = {}
    for name, role in roles.items():
        with device_of(role) as device:
            listens[name] = device.address
    assert listens["rank 0"] == listens["told"] == f"{here}:2001"
    for name in ("not told", "told what others know it by", "told a name"):
        assert listens[name].startswith(f"{here}:")
    with pytest.raises(rdmatensor.DeviceError, match="set RDMATENSOR_BIND_ADDRESS to its own"):
        device_of(Role(0, 2, "192.0.2.1:2001", 0, "test"))
    setting("BIND_ADDRESS", "127.0.0.1")
    with device_of(roles["told"]) as device:
        assert device.address == "127.0.0.1:2001"


def test_host_gone(network: Network, region: rdmatensor.RemoteRegion, note: Any) -> None:
    """With its interface. The last test: it takes the link along."""
    transfers = [region.write(bytes(MB)) for _ in range(8)]
    network.second.run("ip", "link", "delete", CARD)

    def wait() -> None:
        for each in [*transfers, region.write(b"?")]:
            each.wait(PATIENCE)

    error, took = outcome(wait)
    assert isinstance(error, rdmatensor.ConnectionLost), error
    note("host killed", error, took, "other peers; the host can return", "tcp")
