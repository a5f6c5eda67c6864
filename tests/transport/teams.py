# SPDX-License-Identifier: Apache-2.0
"""Processes that are members of a group."""

from __future__ import annotations

from typing import Any

from support.peers import Peer

MEMBER_SETUP = "from support.group_checks import *"


class Team:
    """Processes with a device each; `group` is the one they joined last, `rank` their number."""

    def __init__(self, peers: list[Peer]) -> None:
        self.peers = peers
        for rank, peer in enumerate(peers):
            peer.run(MEMBER_SETUP, rank=rank, size=len(peers), root=peers[0].address)

    def run(self, source: str, **variables: Any) -> None:
        """The same in all of them, at the same time."""
        for peer in self.peers:
            peer.start(source, **variables)
        for peer in self.peers:
            peer.finish(60)

    def get(self, expression: str) -> list[Any]:
        self.run(f"value = {expression}")
        return [peer.get("value") for peer in self.peers]

    def join(self, name: str = "world") -> Team:
        self.run("group = rdmatensor.Group(device, rank, size, root, name, timeout=20)", name=name)
        return self
