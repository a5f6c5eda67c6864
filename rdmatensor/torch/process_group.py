# SPDX-License-Identifier: Apache-2.0
"""The process group: its members, its windows and its end."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from hashlib import sha256
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from .._api import training
from ..group import Group
from .calls import Calls
from .devices import OtherDevices
from .identity import seconds
from .membership import Membership
from .monitor import monitored_barrier
from .operations import Operations
from .session import Session, join
from .window import Window
from .work import Work, failing


def create(given: Any, choices: Any = None) -> ProcessGroup:
    """Return the process group that torch.distributed asks for. Blocks until all members have joined."""
    ranks, world = list(given.global_ranks_in_group), dist.group.WORLD
    parent = world._get_backend(torch.device("cpu")) if ranks and world is not None else None
    made = ProcessGroup(
        given.store,
        given.group_rank,
        given.group_size,
        given.timeout,
        given.group_id,
        ranks,
        parent if isinstance(parent, ProcessGroup) else None,
        bool(getattr(given, "enable_reconfigure", False)),
    )
    made._others = OtherDevices(given, choices)
    return made


class ProcessGroup(Operations, c10d.ProcessGroup):  # type: ignore[misc]
    """A process group of torch.distributed whose operations a Group runs. Create it by init_process_group.

    Methods are those of torch.distributed.ProcessGroup, by new and old names, and take the same arguments.
    Calls with `asyncOp` False have ended when they return; other ones return at once. All return a Work.
    Members call operations in the same order; send and receive match by rank and tag. Tensors are on the
    CPU, of any dtype and strides. A member that is gone, or calls something else, ends the operation at the
    others with DistBackendError, a RuntimeError that names it. Any thread may use the process group.
    """

    def __init__(
        self,
        store: Any,
        rank: int,
        size: int,
        timeout: timedelta,
        name: str = "",
        ranks: Sequence[int] = (),
        parent: ProcessGroup | None = None,
        reconfigurable: bool = False,
    ) -> None:
        """Join the members that have the same `store`, or those of `parent` that have these ranks.

        `ranks` are those of the members among all processes; empty if all processes are members. If it is
        `reconfigurable`, it waits for nobody, and has members after the first reconfigure().
        """
        c10d.ProcessGroup.__init__(self, rank, size)
        Operations.__init__(self, store, name)
        self._windows: weakref.WeakSet[Window] = weakref.WeakSet()
        self._created_as = rank
        self._limit = seconds(timeout)
        if reconfigurable:
            self._membership = Membership.alone(rank, store)
            self._rank, self._size = rank, size
        elif parent is None:
            session, group = join(store, rank, size, name, list(ranks), self._limit)
            self._membership = Membership(session, group.name, group)
            self._configure(group, group.name, ranks)
        else:
            group = parent._split(name, ranks, self._limit)
            unique = f"{parent._unique}/{group.name}"
            self._membership = Membership(parent._session.share(unique), unique, group)
            self._configure(group, unique, ranks)
        self._end = weakref.finalize(self, self._membership.close)
        self._end.atexit = False  # then devices are closed, and their groups with them

    def _configure(self, group: Group, unique: str, ranks: Sequence[int] = ()) -> None:
        """Run operations on this group from now on. `unique` names it in the store."""
        self._rank, self._size = group.rank, group.size
        self._ranks = list(ranks or range(group.size))
        self._unique = unique
        self._barriers = 0
        self._splits: Counter[str] = Counter()
        self._configured = Calls(group, self._name, self._limit, ranks)

    @property
    def _session(self) -> Session:
        return self._membership.session

    def getRank(self) -> int:  # noqa: N802
        """Return the rank of this process, which reconfigure() may change."""
        return self._rank

    rank = getRank

    def getSize(self) -> int:  # noqa: N802
        """Return the number of members, which reconfigure() may change."""
        return self._size

    size = getSize

    def monitored_barrier(self, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        """Wait until all members have called it. Raises RuntimeError, which names who has not.

        With `wait_all_ranks`, rank 0 names all that are missing, else the first. It works without the
        connections of the group.
        """
        given = getattr(timeout, "timeout", timeout)  # torch 2.14 passes options
        limit = timedelta(seconds=self._calls.limit) if given is None else given
        number, self._barriers = self._barriers, self._barriers + 1
        store = dist.PrefixStore(self._unique, self._store)
        monitored_barrier(store, self._rank, self._size, number, limit, wait_all_ranks)

    def comparing(self, text: str) -> AbstractContextManager[None]:
        """Let members compare `text` in each collective operation that this thread begins within the block.

        If it differs, such as names or shapes of the program, the operation fails at all of them with
        DistBackendError, which quotes the first line of both that differs. Blocks do not nest. Tensors of
        other backends are not compared.
        """
        return self._calls.comparing(text)

    @property
    def supports_window(self) -> bool:
        """Whether new_window() makes windows."""
        return True

    def new_window(self, tensor: torch.Tensor | None = None) -> Window:
        """Return a window for one-sided operations, with this tensor if one is given: see Window.

        All members call it in the same order, with a tensor or without.
        """
        window = Window(self)
        if tensor is not None:
            window.tensor_register(tensor)
        return window

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the time-out of operations that begin later and have none of their own."""
        self._limit = seconds(timeout)
        if self._configured is not None:
            self._configured.limit = self._limit
        for each in self._other_groups():
            each.set_timeout(timeout)

    _set_default_timeout = set_timeout

    def split_group(
        self,
        new_ranks: Sequence[int],
        timeout: timedelta | None = None,
        opts: Any = None,
        group_name: str | None = None,
        group_desc: str | None = None,
        device_types: Any = None,
    ) -> ProcessGroup | None:
        """Return a process group of the members `new_ranks`, over the same connections; None to others.

        Only its members need call it. `opts` and `device_types` are not used.
        """
        if self._rank not in new_ranks:
            return None
        limit = timedelta(seconds=self._calls.limit) if timeout is None else timeout
        name = group_name or f"{self._name}:split"
        rank, size = list(new_ranks).index(self._rank), len(new_ranks)
        ranks = [self._ranks[each] for each in new_ranks]
        made = ProcessGroup(self._store, rank, size, limit, name, ranks, self)
        made.setGroupDesc(group_desc or "")
        return made

    def _split(self, name: str, ranks: Sequence[int], limit: float) -> Group:
        """Return a group of members by their ranks among all processes. Names may come again."""
        self._splits[name] += 1
        # Also among those that this process has split off other process groups.
        parent = sha256(self._unique.encode()).hexdigest()[:12]
        unique = f"{name[:36]} {self._splits[name]} {parent}"
        within = [self._ranks.index(each) for each in ranks]
        with failing(f"splitting off process group {name!r}"):
            return self._calls.group.split(within, unique, limit)

    def abort(self) -> None:
        """End what runs or begins later, here and at the other members, with an error."""
        self._calls.abort(self._rank)
        for each in self._other_groups():
            each.abort()

    @property
    def supports_reconfigure(self) -> bool:
        """Whether reconfigure() changes the members."""
        return True

    def get_reconfigure_handle(self) -> str:
        """Return the text by which others find this process, for reconfigure(): always the same.

        Who has it can join, so pass it on only to processes that you trust.
        """
        return self._membership.handle()

    def reconfigure(self, opts: Any) -> Work:
        """Leave the members, and join those of `opts.handles`, which all call it. Blocks until all have.

        `opts` is a ReconfigureOptions: `uuid`, a number that this process group has not had before, the same
        at all members; `handles`, one of each member, in the order of ranks if they are a list; and
        `timeout`, None for that of the process group. Operations under way and windows end at the members
        that were there before. It works after an abort and after members have died.

        Raises RuntimeError for wrong arguments. Raises DistBackendError, which names who has not come; then
        the process group has no members, and reconfigure() may be called again, with a fresh `uuid`.
        """
        if self._other_types():
            raise RuntimeError(
                "reconfigure: a process group with multiple backends cannot change members"
            )
        given = getattr(opts, "timeout", None)
        limit = self._limit if given is None else seconds(given)
        before = self._membership.group
        try:
            group = self._membership.change(
                opts.uuid, opts.handles, self._created_as, self._store, limit
            )
        finally:
            if self._membership.group is not before:
                self._configured = None
                self._free_windows()
        self._configure(group, group.name)
        return Work("reconfigure", [])

    def get_error(self) -> Any:
        """Return torch's word for no error that was not raised: operations raise theirs."""
        return c10d.ErrorType.SUCCESS

    def shutdown(self) -> None:
        """Leave the process group: operations under way fail, here and at the other members."""
        self._free_windows()
        for each in self._other_groups():
            each.shutdown()
        self._end()

    def _free_windows(self) -> None:
        for window in list(self._windows):
            window._free()

    def __repr__(self) -> str:
        return f"<ProcessGroup rdmatensor {self._name!r}, rank {self._rank} of {self._size}>"


def _default_group() -> Group | None:
    """Return the group of the default process group; None if there is none, or of another backend."""
    world = dist.group.WORLD
    if world is None or "cpu" not in {each.type for each in world._device_types}:
        return None
    found = world._get_backend(torch.device("cpu"))
    configured = found._configured if isinstance(found, ProcessGroup) else None
    return None if configured is None else configured.group


training.default_group = _default_group
