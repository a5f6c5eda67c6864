# SPDX-License-Identifier: Apache-2.0
"""Trees that cross several transports: two hosts with two members each, which share memory inside a host."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from rdmatensor.topology import Link, Topology
from support.network import two_hosts
from support.peers import LocalNursery
from topology.conftest import members
from transport.teams import Team

SIZE = 4
SETUP = "import rdmatensor, numpy as np; from rdmatensor import topology"
PAIRS = {(0, 1): 8e9, (2, 3): 8e9, (0, 2): 1e9, (1, 3): 1e9}


@pytest.fixture(scope="module")
def team() -> Iterator[Team]:
    """Members 0 and 1 on one host, 2 and 3 on the other one."""
    settings = {"RDMATENSOR_TRANSPORTS": "shm,tcp", "RDMATENSOR_INSECURE": "1"}
    with two_hosts() as network, ExitStack() as stack:
        peers = []
        for host in (network.first, network.second):
            nursery = LocalNursery(host.command())
            stack.callback(nursery.close)
            for _ in range(2):
                environment = {**settings, "RDMATENSOR_BIND_ADDRESS": host.address}
                peers.append(nursery.spawn(environment, SETUP, device=""))
                stack.callback(peers[-1].close)
        yield Team(peers).join()


def test_each_pair_has_the_transport_that_reaches(team: Team) -> None:
    addresses = [peer.address for peer in team.peers]
    for peer in team.peers:
        peer.run("addresses = every", every=addresses)
    found = team.get(
        "[device.connect(each).transport for each in addresses if each != addresses[rank]]"
    )
    assert found == [
        ["shm", "tcp", "tcp"],
        ["shm", "tcp", "tcp"],
        ["tcp", "tcp", "shm"],
        ["tcp", "tcp", "shm"],
    ]
    assert team.get("group.info.hosts") == [2] * SIZE


def test_trees_of_both_transports(team: Team) -> None:
    """Their edges inside a host and between hosts are in use at the same time."""
    links = tuple(
        Link(f"m{a}", f"m{b}", rate) for pair, rate in PAIRS.items() for a, b in (pair, pair[::-1])
    )
    team.run(
        "trees = topology.use(group, described)",
        described=Topology("two hosts", members(SIZE), links),
    )
    trees = [
        each for each in team.get("[tuple(each) for each in trees]")[0] if each[0] == "all_reduce"
    ]
    crossed = {tuple(sorted((i, up))) for each in trees for i, up in enumerate(each[3]) if i != up}
    assert crossed == set(PAIRS), "every link is used"
    team.run("check_kinds(group, (1, 1001, 300001), ('trees',))")
    team.run("group.use_trees([])")


@pytest.mark.parametrize("seed", [1, 2])
def test_random_trees(team: Team, seed: int) -> None:
    team.run("group.use_trees(random_trees(size, seed))", seed=seed)
    team.run("check_kinds(group, (1, 1001, 30011), ('trees',))")
