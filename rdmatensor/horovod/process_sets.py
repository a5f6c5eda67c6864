# SPDX-License-Identifier: Apache-2.0
"""The processes of a program and sets of them, by Horovod's names, for every framework.

Free of TensorFlow and torch: each framework's functions have a World of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar, TypeVar

from ..errors import UsageError


class World:
    """All processes, as the functions of one framework see them: their hosts, and the sets of them.

    `rank` and `size` return those of this process, and raise UsageError before it has joined the others.
    Not thread-safe.
    """

    def __init__(self, rank: Callable[[], int], size: Callable[[], int]) -> None:
        self.rank = rank
        self.size = size
        self.hosts: list[str] = []
        """The host of each process, by rank; none before it has joined the others."""
        self.sets: dict[int, ProcessSet] = {}
        """The sets that were added, by number."""
        self.added = 0
        """How many sets have been added so far: the number of the newest."""

    def is_initialized(self) -> bool:
        """Return whether this process has joined the others."""
        return bool(self.hosts)

    def _on_host(self, number: int) -> list[int]:
        return [each for each, host in enumerate(self.hosts) if host == self.hosts[number]]

    def local_rank(self) -> int:
        """Return the number of this process among those of its host."""
        number = self.rank()
        return self._on_host(number).index(number)

    def local_size(self) -> int:
        """Return how many processes this host has."""
        return len(self._on_host(self.rank()))

    def _across(self) -> list[int]:
        """Return the processes that have this one's place on their hosts."""
        place = self.local_rank()
        return [each for each in range(self.size()) if self._on_host(each).index(each) == place]

    def cross_rank(self) -> int:
        """Return the number of this process among those with the same place on their hosts."""
        return self._across().index(self.rank())

    def cross_size(self) -> int:
        """Return how many hosts have a process in this one's place."""
        return len(self._across())

    def is_homogeneous(self) -> bool:
        """Return whether all hosts have equally many processes."""
        return len({self.hosts.count(each) for each in self.hosts}) == 1

    def check(self, wanted: ProcessSet) -> None:
        """Raise UsageError if ranks of a set do not exist, or if there is a set of the same ones."""
        ranks, size = wanted.ranks, self.size()
        if not ranks or len({*ranks}) < len(ranks) or not {*ranks} <= {*range(size)}:
            raise UsageError(f"{wanted}: give different ranks, 0 to {size - 1}")
        known = [list(range(size)), *(each.ranks for each in self.sets.values())]
        if ranks in known:
            raise UsageError(f"there is a process set of these ranks already: {ranks}")

    def add(self, added: ProcessSet, members: Any) -> None:
        """Give a set its number and its members, which are None in processes that are not in it."""
        added.process_set_id, added.members = self.added, members
        self.sets[self.added] = added

    def remove(self, removed: ProcessSet) -> Any:
        """Forget a set that was added. Return its members."""
        assert removed.process_set_id is not None
        del self.sets[removed.process_set_id]
        members, removed.process_set_id, removed.members = removed.members, None, None
        return members

    def forget(self) -> None:
        """Forget hosts and sets: this process leaves the others."""
        for each in list(self.sets.values()):
            self.remove(each)
        self.hosts.clear()


class ProcessSet:
    """Some of the processes, which run operations together. add_process_set makes the group of them.

    Not thread-safe.
    """

    world: ClassVar[World]

    def __init__(self, ranks: Iterable[int]) -> None:
        self.ranks: list[int] = sorted(ranks)
        self.process_set_id: int | None = None
        self.members: Any = None
        """What runs operations; None before the set is added, and in processes that are not in it."""

    def size(self) -> int | None:
        """Return how many processes it has; None before it is added."""
        return None if self.process_set_id is None else len(self.ranks)

    def rank(self) -> int | None:
        """Return the number of this process in it; None before it is added, or if this process is in none."""
        if self.process_set_id is None or not self.included():
            return None
        return self.ranks.index(self.world.rank())

    def included(self) -> bool:
        """Return whether this process is in it."""
        return self.world.rank() in self.ranks

    def __repr__(self) -> str:
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks})"


class Everybody(ProcessSet):
    """All processes."""

    def __init__(self) -> None:
        self.process_set_id = 0

    @property
    def ranks(self) -> list[int]:  # type: ignore[override]
        """All ranks; none before init()."""
        return list(range(self.world.size())) if self.world.is_initialized() else []


_Set = TypeVar("_Set", bound=ProcessSet)


def made(kind: type[_Set], given: _Set | Iterable[int]) -> _Set:
    """Return a set of this kind: the one that is given, or one of the ranks that are."""
    return given if isinstance(given, kind) else kind(given)  # type: ignore[arg-type]


def add_all(
    given: Iterable[Any] | str | None, add: Callable[[Any], Any], remove: Callable[[Any], Any]
) -> None:
    """Add the sets that init() gets, which may be a word instead. Add none if one cannot be added."""
    added: list[Any] = []
    try:
        for each in given or () if not isinstance(given, str) else ():
            one = add(each)
            added.append(one)
    except BaseException:
        for each in added:
            remove(each)
        raise


def members_of(process_set: ProcessSet) -> Any:
    """Return what runs the operations of a set that was added.

    Raises UsageError if this process is not in it, or if it was not added.
    """
    if process_set.process_set_id is None:
        raise UsageError(f"{process_set}: call add_process_set in all processes first")
    if process_set.members is None:
        raise UsageError(
            f"rank {process_set.world.rank()} is not in {process_set}: let its members call this only"
        )
    return process_set.members
