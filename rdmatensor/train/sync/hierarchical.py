# SPDX-License-Identifier: Apache-2.0
"""Synchronize on two levels, after Nexus: inside a host, and between hosts.

Wang, Zhang, Ren and Zhang, MASCOTS 2017; docs/papers.md tells which of its ideas is where.
"""

from __future__ import annotations

import itertools
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import UsageError
from ..run.membership import Membership
from ..run.subgroup import Subgroup, gather_texts
from .all_reduce import AllReduce
from .base import Array, Gradients, Parameters, having
from .compression import Compression
from .local_sgd import LocalSGD

# How many hierarchies this process has made: names of groups are unique, and the same in all processes.
_made = itertools.count()


class Hierarchical(Gradients, Parameters):
    """Synchronize the processes of a host by `inside`, in every step, and the hosts by `between`.

    Processes are on one host if they can share memory; with `host_size`, so many successive ranks are one.
    The first process of each host takes part in `between` and passes the result on. `inside` keeps models
    equal: it is AllReduce or a compression.
    """

    def __init__(
        self,
        inside: AllReduce | Compression | None = None,
        between: Parameters | None = None,
        host_size: int | None = None,
    ) -> None:
        self._inside, self._between = inside or AllReduce(), between or LocalSGD()
        if not isinstance(self._inside, (AllReduce, Compression)):
            raise UsageError(
                "Hierarchical(inside=...) takes AllReduce or a compression: they keep models equal"
            )
        if not (isinstance(self._between, Parameters) and self._between.waits):
            raise UsageError(
                f"Hierarchical(between={type(self._between).__name__}): give a synchronizer that exchanges "
                "parameters and waits for others, such as LocalSGD or DiLoCo"
            )
        self._host_size = host_size
        self._here: Any = None
        self._leaders: Any = None

    def _join(self, members: Any) -> None:
        """Make the groups. All processes call it at the same place of the program."""
        if self._here is not None:
            return
        assert members.group is not None and members.device is not None
        host = str(members.rank // self._host_size) if self._host_size else _host()
        hosts = gather_texts(members, host)
        addresses = gather_texts(members, members.device.address)
        together: dict[str, list[int]] = {}
        for rank, each in enumerate(hosts):
            together.setdefault(each, []).append(rank)
        mine = together[hosts[members.rank]]
        first = [ranks[0] for ranks in together.values()]
        name = f"rdmatensor.train.{next(_made)}"
        self._here = Subgroup(members, mine, addresses[mine[0]], f"{name}.host.{mine[0]}")
        if self._here.rank == 0:
            self._leaders = Subgroup(members, first, addresses[first[0]], f"{name}.hosts")

    @property
    def _leads(self) -> bool:
        return self._leaders is not None and self._leaders.size > 1

    def gradients(self, members: Membership, gradients: Sequence[Any], name: str) -> Sequence[Any]:
        """Return gradients as `inside` makes them for this host."""
        self._join(members)
        self._inside.names = self.names
        return self._inside.gradients(self._here, gradients, name)

    def begin(self, members: Membership, x: Array) -> int:
        """Let the leaders begin."""
        self._join(members)
        self._between.shapes = self.shapes
        return self._pass_on(self._between.begin(self._leaders, x) if self._leads else 0)

    def exchange(self, x: Array, step: int, learning_rate: float) -> int:
        """Let the leaders exchange, and copy their models to their hosts."""
        following = self._between.exchange(x, step, learning_rate) if self._leads else 0
        self._broadcast(x, "the model of this host")
        return self._pass_on(following)

    def conclude(self, x: Array, step: int) -> None:
        """Let the leaders conclude, and copy their models to their hosts."""
        if self._leads:
            self._between.conclude(x, step)
        self._broadcast(x, "the model of this host")

    def _pass_on(self, step: int) -> int:
        """Return the leader's number of a step. With one host, it never comes."""
        number = np.array([step if self._leads else np.iinfo(np.int64).max], np.int64)
        self._broadcast(number, "the next exchange between hosts")
        return int(number[0])

    def _broadcast(self, array: Array, name: str) -> None:
        """Copy what the leader has to its host."""
        here = self._here
        if here.group is not None:
            here.group.broadcast(array, timeout=here.timeout, detail=name)

    def observe(self, loss: float) -> None:
        """Pass the loss on to `between`, in leaders."""
        if self._leads:
            self._between.observe(loss)

    def state(self) -> Mapping[str, Array]:
        """Return the states of both levels."""
        between = self._between.state() if self._leads else {}  # others have not begun it
        kept = {f"inside {name}": each for name, each in self._inside.state().items()}
        return kept | {f"between {name}": each for name, each in between.items()}

    def restore(self, state: Mapping[str, Array]) -> None:
        """Take the states of both levels."""
        self._inside.restore(having(state, "inside "))
        if between := having(state, "between "):
            self._between.restore(between)

    def close(self) -> None:
        """Close what is between the hosts."""
        self._between.close()


def _host() -> str:
    """Return what processes have in common that can share memory: the running system, and its network."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{Path('/proc/self/ns/net').stat().st_ino}"
    except OSError:
        return socket.gethostname()
