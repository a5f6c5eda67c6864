# SPDX-License-Identifier: Apache-2.0
"""Form a group of some of a run's processes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...errors import UsageError
from ...group import Group
from ...topology import Topology
from ..backend.base import backend
from .membership import Membership
from .roles import device_name
from .session import LEFT, Session

_TEXT = 512


class Subgroup(Membership):
    """A membership in a group of some of a run's processes.

    If the run knows its links, the group has trees along those among its members.
    """

    def __init__(self, run: Session, ranks: Sequence[int], root: str, name: str) -> None:
        self.name = name
        self.size, self.rank = len(ranks), list(ranks).index(run.rank)
        self.ranks = [run.ranks[each] for each in ranks]
        """Of the members, in the whole run."""
        self.closing = run.closing
        self.parts = run.parts
        self.group: Group | None = None
        self.join(run, root)
        if self.size > 1:
            self.parts.append(self)

    def join(self, run: Session, root: str) -> None:
        """Make the group, also after the run has joined again. All its members call it."""
        self.local_rank, self.timeout, self.device = self.rank, run.timeout, run.device
        self.topology = run.topology
        self.stores, self.addresses, self.published = 0, (), None
        if self.size == 1:
            return
        assert run.device is not None
        first = device_name(self.ranks[0])
        self.group = Group(run.device, self.rank, self.size, root, self.name, run.timeout, first)
        if self._handle is not None:
            backend().join(run.device, self.group, run.timeout, self._handle)
        try:
            if run.topology is not None:
                self.follow(run.topology)
        except BaseException:
            self.leave()
            raise

    def follow(self, topology: Topology) -> None:
        """Give the group trees along the run's links, as they are now. Every member calls it.

        The group has none if its members reach each other only through other processes.
        """
        from ...topology.agree import use  # needs SciPy

        self.topology = topology
        among = topology.only(self.ranks)
        if self.group is not None and among.connected:
            use(self.group, among, roots=[0], timeout=self.timeout)

    def check(self) -> None:
        """Raise UsageError if this process has left the group."""
        if self.size > 1 and self.group is None:
            raise UsageError(LEFT)

    def leave(self) -> None:
        """Leave the group, until the run joins again."""
        group, self.group = self.group, None
        if group is not None:
            if self._handle is not None:
                backend().leave(self._handle, release=False)
            group.close()
            if self._handle is not None:
                backend().leave(self._handle, release=True)


def gather_texts(run: Membership, text: str) -> list[str]:
    """Return every member's text, by rank. What is beyond 512 bytes is cut off."""
    mine = np.zeros(_TEXT, np.uint8)
    encoded = text.encode()[:_TEXT]
    mine[: len(encoded)] = np.frombuffer(encoded, np.uint8)
    assert run.group is not None
    rows = run.group.all_gather(mine, timeout=run.timeout, detail="hosts and addresses")
    texts = rows.reshape(run.size, _TEXT)
    return [each.tobytes().rstrip(b"\0").decode(errors="replace") for each in texts]
