# SPDX-License-Identifier: Apache-2.0
"""A process group for torchft, whose members change while a program trains. Importing it needs torchft."""

from __future__ import annotations

from typing import Any

from torchft.process_group import ProcessGroupWrapper

from . import process_group

__all__ = ["ProcessGroup"]


class ProcessGroup(ProcessGroupWrapper):  # type: ignore[misc]
    """A process group whose members a torchft.Manager chooses: `Manager(pg=ProcessGroup(timeout))`.

    `timeout`, a timedelta, limits how long configure() waits for other members, and each operation. Tensors
    and operations are those of rdmatensor.torch.ProcessGroup. An operation fails at all members if one dies,
    aborts or is configured anew; afterwards the process group needs configure(). The threads of a process
    may be members, each with a process group of its own. Any thread may use it; one at a time configures it.
    """

    _pg: process_group.ProcessGroup | None
    _errored: Exception | None = None

    def configure(self, *args: Any, **kwargs: Any) -> None:
        """Leave the members of before, and join those that have the same `store_addr`. Blocks until all have.

        The arguments are those of torchft. Each set of members needs an address with a prefix of its own.
        Raises RuntimeError, which names who has not come.
        """
        # Joining first would keep the device, and with it connections that may have failed.
        self.shutdown()
        super().configure(*args, **kwargs)
        self._errored = None

    def abort(self, errored: bool = True) -> None:
        """End what runs, here and at the other members, with an error, and leave the process group.

        Unless `errored` is False, errored() says so until configure().
        """
        pg = self._pg
        super().abort(errored)
        if errored:
            self._errored = RuntimeError("rdmatensor: the process group was aborted: configure it")
        if pg is not None:
            pg.shutdown()

    def shutdown(self) -> None:
        """Leave the process group. Operations under way fail, here and at the other members."""
        pg, self._pg = self._pg, None
        if pg is not None:
            pg.shutdown()

    def errored(self) -> Exception | None:
        """Return the error because of which configure() is needed. Errors of operations are in their Work."""
        return self._errored

    def set_timeout(self, timeout: Any) -> None:
        """Set the time-out of configure(), and of operations that begin later."""
        super().set_timeout(timeout)
        pg = self._pg
        if pg is not None:
            pg.set_timeout(timeout)

    def getBackendName(self) -> str:  # noqa: N802
        """Return the name of the backend."""
        return "torchft-rdmatensor"

    def _create_pg(self, store: Any, rank: int, world_size: int) -> process_group.ProcessGroup:
        name = "torchft" if self._quorum_id is None else f"torchft quorum {self._quorum_id}"
        return process_group.ProcessGroup(store, rank, world_size, self._timeout, name)
