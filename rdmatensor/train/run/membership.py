# SPDX-License-Identifier: Apache-2.0
"""Describe a process's place among those that train together, as synchronizers see it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from ..backend.base import backend

if TYPE_CHECKING:
    from ...device import Device
    from ...group import Group
    from .rejoin import Addresses

Array = npt.NDArray[Any]
_MOVING = threading.Lock()


class Membership:
    """The place of one of `size` processes that train together: a session, or a subgroup of one."""

    rank: int
    size: int
    timeout: float
    device: Device | None = None
    group: Group | None = None
    """None in a process that has come back: it is in no group."""
    _handle: Any = None
    _joining = threading.Lock()
    closing: list[Callable[[], None]]
    """What is called before the group is left, each time."""
    name = "rdmatensor.train"
    step = 0
    """At which step a process has come back."""
    stores = 0
    """How many it has made."""
    addresses: Sequence[str] = ()
    """Of all processes' devices, once somebody has needed them."""
    published: Addresses | None = None

    @property
    def handle(self) -> Any:
        """The group as operations of the framework take it; None without a group.

        It is made when it is first used: TensorFlow lets a program choose its devices before its first
        operation only, and a program chooses them by the rank that init() tells.
        """
        with self._joining:
            if self._handle is None and self.group is not None:
                assert self.device is not None
                self._handle = backend().join(self.device, self.group, self.timeout, None)
            return self._handle

    def check(self) -> None:
        """Raise UsageError if this process has left the group."""

    def name_of_next_store(self) -> str:
        """Return the name of the next store. Processes make their stores in the same order."""
        return f"{self.name} {self.stores + 1}"

    def moved(self, rank: int, address: str) -> None:
        """Note where a process is now. Any thread may call it."""
        with _MOVING:
            self.addresses = [*self.addresses[:rank], address, *self.addresses[rank + 1 :]]
            if self.published is not None:
                self.published[rank] = address
