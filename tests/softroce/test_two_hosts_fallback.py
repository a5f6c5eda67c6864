# SPDX-License-Identifier: Apache-2.0
"""Between two hosts: verbs does not reach the peer any more, tcp does, and later verbs again.

The hosts have a second address each, for TCP. Packets of verbs go to the first one, and are led astray.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rdmatensor.softroce import Host
from softroce.guests import Peer, Site
from softroce.pairs import DEADLINE, IMPATIENT, SLACK, Hosts

NOWHERE = "02:00:00:00:00:01"


def second_address(host: Host) -> str:
    return host.address.replace("10.77.", "10.78.")


@pytest.fixture
def addressed(hosts: Hosts) -> Iterator[Hosts]:
    places = [site.host for site in (hosts.first, hosts.second)]
    for host in places:
        host.run(["ip", "address", "add", f"{second_address(host)}/24", "dev", "eth0"])
    yield hosts
    for host in places:
        host.run(["ip", "address", "delete", f"{second_address(host)}/24", "dev", "eth0"])


def peer_at(site: Site) -> Peer:
    peer = site.peer(TRANSPORTS="verbs,tcp", **IMPATIENT)
    peer.run("from softroce.traffic import *")
    peer.run("device = rdmatensor.Device(bind=address)", address=second_address(site.host))
    peer.address = peer.get("device.address")
    return peer


def transport(ours: Peer, theirs: Peer, permitted: str = "") -> str:
    """What a new connection uses, over which a write arrives."""
    ours.run(
        """
        began = time.monotonic()
        remote = device.connect(address, timeout=60, transports=permitted)
        took = time.monotonic() - began
        region = remote.region('region', timeout=20)
        region.write(b'12345678').wait(20)
        """,
        address=theirs.address,
        permitted=permitted.split(),
    )
    assert theirs.get("bytes(region.array[:8])") == b"12345678"
    theirs.run("region.array[:8] = 0")
    return str(ours.get("remote.transport"))


@pytest.mark.long
def test_verbs_lost_then_tcp_then_verbs(addressed: Hosts) -> None:
    host, other = addressed.first.host, addressed.second.host.address
    ours, theirs = peer_at(addressed.first), peer_at(addressed.second)
    theirs.run("region = device.allocate(4096, name='region')")
    assert transport(ours, theirs) == "verbs"
    try:
        astray = [other, "lladdr", NOWHERE, "dev", "eth0", "nud", "permanent"]
        host.run(["ip", "neighbour", "replace", *astray])
        lost = ours.get("until_lost(lambda: region.write(b'1').wait(20))")
        assert lost["kind"] == "ConnectionLost", lost
        assert transport(ours, theirs) == "tcp"
        assert "not answer" in ours.get("remote.passed_over['verbs']")
        first = ours.get("took")
        assert transport(ours, theirs) == "tcp"
        assert ours.get("took") < min(first, 2), "the failure is not remembered"
        refused = ours.get(
            "attempt(lambda: device.connect(address, timeout=20, transports=['verbs']))",
            address=theirs.address,
        )
        assert refused["kind"] == "ConnectionLost" and refused["took"] < DEADLINE + SLACK, refused
    finally:
        host.run(["ip", "neighbour", "delete", other, "dev", "eth0"])
    assert transport(ours, theirs, "verbs") == "verbs"


def test_ends_that_cannot_be_joined(hosts: Hosts) -> None:
    """One has a GID of another kind; then one may pin no more memory."""
    both = {"TRANSPORTS": "verbs,tcp", "SECRET_FILE": "", "INSECURE": "1"}
    ours, theirs = hosts.first.process(**both), hosts.second.peer(**both, GID_INDEX=0)
    theirs.run("region = device.allocate(4096, name='region')")
    hosts.first.host.run(["sh", "-c", "chmod 666 /dev/infiniband/uverbs*"])
    ours.run(
        """
        import os, resource
        from softroce.traffic import *  # as root: other users may not look into the folder of the sources
        os.setuid(65534)  # root may lock what it likes
        device = Device()
        """
    )
    assert transport(ours, theirs) == "tcp"
    assert "another kind" in ours.get("remote.passed_over['verbs']")
    theirs = hosts.second.peer(**both)
    theirs.run("region = device.allocate(4096, name='region')")
    assert transport(ours, theirs) == "verbs"
    ours.run("resource.setrlimit(resource.RLIMIT_MEMLOCK, (0, 0))")
    assert transport(ours, theirs) == "tcp"
    assert "ulimit -l" in ours.get("remote.passed_over['verbs']")
