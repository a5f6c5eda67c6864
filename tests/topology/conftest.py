# SPDX-License-Identifier: Apache-2.0
"""Members of a group, at the nodes of an emulated topology or on this host."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from rdmatensor import Unsupported
from rdmatensor.topology import Member, Topology
from rdmatensor.topology.emulate import Emulation, emulated
from support.peers import LocalNursery, Peer
from transport.teams import Team

_ENTER = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
assert libc.setns(os.open(namespace, os.O_RDONLY), 0x40000000) == 0, os.strerror(ctypes.get_errno())
"""
_OPEN = "from rdmatensor import topology; device = rdmatensor.Device(bind=bind or None)"


def members(size: int) -> tuple[Member, ...]:
    return tuple(Member(f"m{i}") for i in range(size))


@pytest.fixture(scope="session")
def nursery() -> Iterator[LocalNursery]:
    nursery = LocalNursery()
    yield nursery
    nursery.close()


class Place:
    """Starts members; they end with the test."""

    def __init__(self, nursery: LocalNursery, stack: ExitStack) -> None:
        self._nursery, self._stack = nursery, stack

    def here(self, faults: list[str]) -> Team:
        """Members on this host, over TCP, with these faults."""
        return self._joined([{"RDMATENSOR_FAULTS": each} for each in faults])

    def emulated(self, topology: Topology) -> tuple[Emulation, Team]:
        """The topology, and a member at each of its members' nodes."""
        try:
            emulation = self._stack.enter_context(emulated(topology))
        except Unsupported as error:
            pytest.skip(str(error))
        return emulation, self._joined([{} for _ in topology.members], emulation)

    def _joined(self, environments: list[dict[str, str]], at: Emulation | None = None) -> Team:
        common = {"RDMATENSOR_TRANSPORTS": "tcp", "RDMATENSOR_INSECURE": "1"}
        peers: list[Peer] = []
        for number, each in enumerate(environments):
            peer = self._nursery.spawn({**common, **each})
            self._stack.callback(peer.close)
            if at is not None:
                peer.run(_ENTER, namespace=at.namespace(number))
            peer.run(_OPEN, bind=at.addresses[number] if at is not None else "")
            peer.address = peer.get("device.address")
            peers.append(peer)
        return Team(peers).join()


@pytest.fixture
def place(nursery: LocalNursery) -> Iterator[Place]:
    with ExitStack() as stack:
        yield Place(nursery, stack)
