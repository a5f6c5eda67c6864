# SPDX-License-Identifier: Apache-2.0
"""Pairs of connected peers on two hosts over verbs, and what the tests say about a lost connection."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from rdmatensor.softroce import Lab
from softroce.guests import Peer, Site
from support.waits import until

DEADLINE = 4.0
# Two emulated hosts on a busy machine: their processes are scheduled late.
SLACK = 20.0
IMPATIENT = {"DEADLINE_MS": int(DEADLINE * 1000)}


class Pair(NamedTuple):
    """A peer on each host; `ours` is connected to `theirs` as `remote`."""

    ours: Peer
    theirs: Peer


class Hosts(NamedTuple):
    lab: Lab
    first: Site
    second: Site

    def pair(self, region: int = 1 << 20, **settings: Any) -> Pair:
        ours, theirs = self.first.peer(**settings), self.second.peer(**settings)
        for peer in (ours, theirs):
            peer.run("from softroce.traffic import *")
        theirs.run("region = device.allocate(size, name='region')", size=region)
        connect(ours, theirs)
        return Pair(ours, theirs)

    def bystander(self, ours: Peer) -> None:
        """Another peer of `ours`, on its own host, whose connection must go on."""
        other = self.first.peer()
        other.run("region = device.allocate(4096, name='region')")
        ours.run(
            "spare = device.connect(address); kept = spare.region('region')", address=other.address
        )


def connect(ours: Peer, theirs: Peer) -> None:
    ours.run(
        "remote = connect_once_found(device, address); region = remote.region('region', timeout=20)",
        address=theirs.address,
    )


def works(pair: Pair) -> bool:
    """Whether the two can connect, write and read, whatever was before."""
    connect(*pair)
    pair.ours.run("region.write(b'again').wait(20)")
    return bool(pair.theirs.get("bytes(region.array[:5])") == b"again")


def until_written(pair: Pair) -> None:
    """Waits until what `ours` writes arrives at `theirs`."""
    until("nothing arrives", lambda: pair.theirs.get("region.array.any()"))


def told(outcome: dict[str, Any]) -> str:
    """What a user sees of it."""
    return f"DEADLINE_MS={DEADLINE * 1000:.0f}: {outcome['kind']}: {outcome['text']}"


def check_lost(outcome: dict[str, Any], pair: Pair, what: str, remedy: str) -> None:
    """The error says what happened to which connection, and what it may mean."""
    assert outcome["kind"] == "ConnectionLost", outcome
    text = outcome["text"]
    assert what in text and remedy in text, text
    assert re.search(r"vendor error 0x?[0-9a-f]+, queue pair 0x[0-9a-f]{4,6} to ", text), text
    assert "rxe0:1" in text, text
    assert pair.theirs.address in text, text
    assert outcome["pending"] == 0, "every transfer ends"
