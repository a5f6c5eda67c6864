# SPDX-License-Identifier: Apache-2.0
"""The transport that the suite runs on, peers in other processes, and connections to them.

RDMATENSOR_TEST_TRANSPORT names the transport, shm by default; tests/softroce runs the suite on verbs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest

import rdmatensor
from support.peers import LocalNursery, Peer
from support.waits import stays
from transport.teams import Team

Setting = Callable[[str, str | int], None]
TRANSPORT = os.environ.get("RDMATENSOR_TEST_TRANSPORT", "shm")


@pytest.fixture
def transport(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> str:
    """The transport under test, chosen for devices opened from now on, here and in peers."""
    monkeypatch.setenv("RDMATENSOR_TRANSPORTS", TRANSPORT)
    setting("TRANSPORTS", TRANSPORT)
    return TRANSPORT


@pytest.fixture(scope="session")
def nursery() -> Iterator[LocalNursery]:
    nursery = LocalNursery()
    yield nursery
    nursery.close()


@pytest.fixture
def spawn(transport: str, nursery: LocalNursery) -> Iterator[Callable[..., Peer]]:
    """Makes peers, which have this process's deadline; they end with the test."""
    peers: list[Peer] = []

    def make(environment: dict[str, str] | None = None, device: bool = True) -> Peer:
        deadline = {"RDMATENSOR_DEADLINE_MS": rdmatensor.config.get("DEADLINE_MS")}
        variables = {"RDMATENSOR_TRANSPORTS": transport, **deadline, **(environment or {})}
        peer = nursery.spawn(variables, device="" if device else None)
        peers.append(peer)
        return peer

    yield make
    for peer in peers:
        peer.close()


@pytest.fixture
def peer(spawn: Callable[..., Peer]) -> Peer:
    return spawn()


@pytest.fixture
def patient(setting: Setting) -> None:
    """Nothing ends by this deadline, and nothing is lost by it on a busy machine."""
    setting("DEADLINE_MS", 100_000)


NARROW = {"RING_BYTES": "65536", "NOTIFY_QUEUE_BYTES": "4096"}


@pytest.fixture
def narrow(spawn: Callable[..., Peer], setting: Setting) -> Peer:
    """A peer to which few notifications fit before the sender has to wait."""
    for name, value in NARROW.items():
        setting(name, value)
    return spawn({f"RDMATENSOR_TEST_{name}": value for name, value in NARROW.items()})


@pytest.fixture
def clogged(narrow: Peer, device: rdmatensor.Device) -> Iterator[Clogged]:
    """A connection on which notifications already wait for the peer to take some."""
    remote = device.connect(narrow.address)
    transfers = [remote.notify(bytes(1000))]
    # The peer's own queue takes a few more, a moment later.
    while not stays(lambda: not transfers[-1].done()):
        transfers.append(remote.notify(bytes(1000)))
        assert len(transfers) < 10000, "the sender never runs out of credit"
    yield Clogged(narrow, remote, transfers[-1], len(transfers))


class Clogged(NamedTuple):
    peer: Peer
    remote: rdmatensor.RemoteDevice
    waiting: rdmatensor.Transfer
    posted: int


@pytest.fixture
def device(transport: str) -> Iterator[rdmatensor.Device]:
    with rdmatensor.Device() as device:
        yield device


@pytest.fixture
def remote(device: rdmatensor.Device, peer: Peer) -> rdmatensor.RemoteDevice:
    """The peer's device, connected from ours."""
    return device.connect(peer.address)


@pytest.fixture
def mappable(remote: rdmatensor.RemoteDevice) -> rdmatensor.RemoteDevice:
    """The same, over which the peer's memory can be used in place."""
    if not remote.capabilities & rdmatensor.Capability.MAP:
        pytest.skip(f"transport {remote.transport} cannot map remote memory")
    return remote


@pytest.fixture
def team(spawn: Callable[..., Peer]) -> Callable[[int], Team]:
    return lambda size: Team([spawn() for _ in range(size)])


@pytest.fixture(scope="session")
def two(nursery: LocalNursery) -> Iterator[Team]:
    """Processes that tests share: starting them takes longer than most tests."""
    peers = [nursery.spawn({"RDMATENSOR_TRANSPORTS": TRANSPORT}, device="") for _ in range(2)]
    yield Team(peers)
    for peer in peers:
        peer.close()


@pytest.fixture
def pair(two: Team) -> Iterator[Team]:
    yield two.join()
    two.run("for each in list(device._groups): each.close()")


@pytest.fixture
def alone(device: rdmatensor.Device) -> Iterator[rdmatensor.Group]:
    """A group with one member: what is checked before anything is sent."""
    with rdmatensor.Group(device, 0, 1) as group:
        yield group
