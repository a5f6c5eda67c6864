# SPDX-License-Identifier: Apache-2.0
"""Processes of torch.distributed, as peers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from support.peers import LocalNursery, Peer

SETUP = """
import os, time, threading
from datetime import timedelta
import torch
import torch.distributed as dist
import rdmatensor, rdmatensor.torch
from pytorch import checks
torch.set_num_threads(1)
"""
INIT = """
dist.init_process_group(
    backend, init_method=f"file://{store}", rank=rank, world_size=size, timeout=timedelta(seconds=timeout))
"""


class Ranks:
    """`size` processes, each of which has joined the default process group unless `joins` is False."""

    def __init__(
        self,
        nursery: LocalNursery,
        size: int,
        store: Path,
        backend: str = "rdmatensor",
        timeout: float = 60.0,
        joins: bool = True,
        environment: dict[str, str] | None = None,
    ) -> None:
        self.peers = [nursery.spawn(environment or {}, SETUP) for _ in range(size)]
        variables = {"size": size, "store": str(store), "backend": backend, "timeout": timeout}
        for rank, peer in enumerate(self.peers):
            peer.run("pass", rank=rank, **variables)
        if joins:
            self.run(INIT)

    def run(self, source: str, among: Sequence[int] | None = None, **variables: Any) -> None:
        """Runs the same in all of them, or in those with the ranks `among`, at the same time."""
        peers = self.peers if among is None else [self.peers[rank] for rank in among]
        for peer in peers:
            peer.start(source, **variables)
        for peer in peers:
            peer.finish()

    def get(
        self, expression: str, among: Sequence[int] | None = None, **variables: Any
    ) -> list[Any]:
        self.run(f"value = {expression}", among, **variables)
        ranks = range(len(self.peers)) if among is None else among
        return [self.peers[rank].get("value") for rank in ranks]

    def close(self) -> None:
        for peer in self.peers:
            peer.close()

    def __getitem__(self, rank: int) -> Peer:
        return self.peers[rank]
