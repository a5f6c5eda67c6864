# SPDX-License-Identifier: Apache-2.0
"""Join the group of processes that train together, and leave it."""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ...errors import UsageError
from ..backend.base import backend
from .membership import Membership
from .rejoin import decoded, encoded, find
from .roles import Role, device_of, join, role_of

if TYPE_CHECKING:
    from ...topology import Topology
    from .subgroup import Subgroup


class Session(Membership):
    """The membership of this process. `group` and `device` are None if the process is alone.

    `group` is also None if the process `returns` to others that train without waiting.
    """

    def __init__(self, role: Role, timeout: float) -> None:
        self.rank, self.size = role.rank, role.size
        self.closing = []
        self.saves = False
        """Whether a callback of rank 0 saves models."""
        self.folders: dict[str, tuple[Callable[[], Any], int]] = {}
        """Of backups: the model that was trained last, weakly, and how often fit() was called for it."""
        self.returns = False
        self.left = False
        self.generation = 0
        """How often this process has left the group and joined it again."""
        self.numbered = 0
        """On how many variables all processes have agreed; see agree.py."""
        self.ranks: Sequence[int] = range(role.size)
        self.parts: list[Subgroup] = []
        """The groups of some of the processes that this one has joined, in the order of the program."""
        self.topology: Topology | None = None
        """The links between processes, if init() was told of them."""
        self._arena: Any = None
        self._join(role, timeout)

    def _join(self, role: Role, timeout: float, looks: bool = True) -> None:
        """Join the group. A process that `looks` for others who train already comes back to them instead."""
        self.local_rank, self.timeout = role.local_rank, timeout
        if role.size == 1:
            return
        backend().load()  # if TensorFlow cannot load it, nobody waits for this process
        self.device = device_of(role)
        self._arena = None  # that of an earlier group is gone
        try:
            others = [each for rank, each in enumerate(role.addresses) if rank != role.rank]
            if role.rank != 0:
                others.insert(0, role.root)
            self.addresses = find(self.device, others, role.size) if looks else []
            self.returns = bool(self.addresses)
            self._arena = backend().share(self.device)
            if self.returns:
                return
            self.group = join(self.device, role, "rdmatensor.train", timeout)
            if self._handle is not None:  # functions that have been traced use it
                backend().join(self.device, self.group, timeout, self._handle)
        except BaseException:
            backend().unshare(self._arena)
            self.device.close()
            raise

    def join_again(self, role: Role, timeout: float) -> None:
        """Join again, in the same place, after `close`: what holds this object goes on."""
        # Others that have not left yet are no training to come back to: they join again, too.
        self._join(role, timeout, looks=False)
        self.left, self.generation, self.numbered = False, self.generation + 1, 0
        self.stores, self.addresses, self.published = 0, (), None

    def join_parts(self) -> None:
        """Join the subgroups again that there were before.

        All processes call it, and must know the same ones.
        """
        if self.group is None:
            return
        known = ", ".join(each.name for each in self.parts) or "none"
        self.group.barrier(timeout=self.timeout, detail=f"groups to join again: {known}")
        if not self.parts:
            return
        assert self.device is not None
        rows = self.group.all_gather(encoded(self.device.address), timeout=self.timeout)
        addresses = decoded(rows.reshape(self.size, -1))
        for each in self.parts:
            each.join(self, addresses[each.ranks[0]])

    def check(self) -> None:
        """Raise UsageError if this process has left the group."""
        if self.left:
            raise UsageError(LEFT)

    def close(self) -> None:
        """Leave the group.

        Operations under way fail, here and at the other members. It may be called again.
        """
        if self.left:
            return
        self.left = True
        for function in reversed(self.closing):
            function()
        for part in reversed(self.parts):
            part.leave()
        device, self.device = self.device, None
        group, self.group = self.group, None
        if self._handle is not None:
            backend().leave(self._handle, release=False)
        if group is not None:
            group.close()
        if self._handle is not None:
            backend().leave(self._handle, release=True)
        if device is not None:
            backend().unshare(self._arena)
            device.close()


LEFT = (
    "this process has left the group: call rdmatensor.train.init() again. Models, optimizers and functions "
    "then go on, if there are as many processes as before"
)

_run: Session | None = None
# The one that shutdown() has left, which init() in the same place joins again.
_before: Session | None = None


def init(
    *,
    rank: int | None = None,
    size: int | None = None,
    root: str | None = None,
    timeout: float = 600.0,
    topology: Topology | str | None = None,
) -> Session:
    """Join the processes that train together. Call it first in each of them; it blocks until all have.

    Without arguments, the place comes from TF_CONFIG (`rdmatensor launch`, Kubernetes), or from the variables
    of torchrun, Slurm or MPI; without any of them the process is alone. `root` is the "host:port" at which
    rank 0 listens for the others. `timeout`, in seconds, bounds this call and each operation: a process that
    waits so long for another one fails. `topology`, a rdmatensor.topology.Topology, the path of its file or
    the name of a recorded one, has the links between the processes in the order of ranks; rank 0's counts,
    and collective operations, also those of some of the processes, take spanning trees where they are faster.
    "probe" measures the links, and takes some seconds.

    A process that died, and is started again while the others train with a synchronizer that waits for
    nobody, comes back to them here, if it finds one of them: rank 0, or any other whose address TF_CONFIG
    has. It is in no group then: it reads the model of another process when fit() begins.

    Calling it again returns the same object; after shutdown(), too, if the process gets the same place among
    as many: models, optimizers and functions then go on, and training begins with the state that rank 0 has.
    Synchronizers begin anew. Raises UsageError if the place is unclear, Unsupported if this TensorFlow cannot
    be used, and what Group raises. Not thread-safe.
    """
    global _run, _before
    if _run is None:
        role = role_of(os.environ, rank, size, root)
        if _before is not None and (_before.rank, _before.size) == (role.rank, role.size):
            _before.join_again(role, timeout)
            _run, _before = _before, None
        else:
            _run = Session(role, timeout)
        atexit.register(shutdown)
        backend().begin(_together)
        try:
            _follow(_run, topology)
            _run.join_parts()
        except BaseException:
            shutdown()
            raise
    return _run


def _follow(run: Session, topology: Topology | str | None) -> None:
    """Give the group trees along the links that init() was told of."""
    run.topology = None
    if topology is None or run.group is None:
        return
    from ...topology.agree import share, use
    from ...topology.probing import probe

    if topology == "probe":
        topology = probe(run.group, timeout=run.timeout)
    run.topology = share(run.group, topology, run.timeout)
    use(run.group, run.topology, roots=[0], timeout=run.timeout)


def shutdown() -> None:
    """Leave the group. init() can join it again, or another one. A program that ends does it by itself."""
    global _run, _before
    run, _run = _run, None
    if run is not None:
        _before = run
        atexit.unregister(shutdown)
        run.close()


def current() -> Session:
    """Return the session of init(). Raises UsageError before that."""
    if _run is None:
        raise UsageError(LEFT if _before else "call rdmatensor.train.init() first")
    return _run


def _together() -> Session | None:
    """Return what init() returned, if this process trains with others now."""
    return _run if _run is not None and _run.group is not None else None


def rank() -> int:
    """Return the number of this process, from 0."""
    return current().rank


def size() -> int:
    """Return how many processes train together."""
    return current().size


def local_rank() -> int:
    """Return the number of this process among those of its host, from 0."""
    return current().local_rank
