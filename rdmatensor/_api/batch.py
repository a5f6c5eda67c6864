# SPDX-License-Identifier: Apache-2.0
"""Several operations posted as one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .._ffi import ffi, lib
from ..errors import UsageError
from . import buffers
from .arguments import whole
from .buffers import Buffer
from .region import RemoteRegion

if TYPE_CHECKING:
    from .remote import RemoteDevice


class Batch:
    """A list of operations that RemoteDevice.post executes in the order in which they were added.

    RemoteDevice.batch() creates it. Each post sends what the buffers hold at that moment, so a batch can be
    posted any number of times. The batch keeps its buffers alive. Do not change it in one thread while
    another one posts it. Arrays must be C-contiguous.
    """

    def __init__(self, remote: RemoteDevice) -> None:
        self._remote = remote
        self._rows: list[tuple[int, Any, Any, int, int]] = []
        self._ops: Any = None

    def write(
        self, region: RemoteRegion, data: Buffer, offset: int = 0, notify: int | None = None
    ) -> Batch:
        """Add what RemoteRegion.write posts."""
        kind = lib.RDT_OP_WRITE if notify is None else lib.RDT_OP_WRITE_NOTIFY
        return self._add(
            kind,
            buffers.source(data),
            self._checked(region),
            offset,
            0 if notify is None else notify,
        )

    def read_into(self, region: RemoteRegion, array: Buffer, offset: int = 0) -> Batch:
        """Add what RemoteRegion.read_into posts."""
        return self._add(lib.RDT_OP_READ, buffers.target(array), self._checked(region), offset, 0)

    def notify(self, payload: Buffer = b"", immediate: int = 0) -> Batch:
        """Add what RemoteDevice.notify posts."""
        return self._add(lib.RDT_OP_NOTIFY, buffers.source(payload), ffi.NULL, 0, immediate)

    def __len__(self) -> int:
        return len(self._rows)

    def _checked(self, region: RemoteRegion) -> Any:
        if not isinstance(region, RemoteRegion):
            raise UsageError(f"{region!r} is no RemoteRegion")
        if region._remote is not self._remote:
            raise UsageError(f"{region!r} cannot be used in a batch for {self._remote!r}")
        return region._need_handle()

    def _add(self, kind: int, local: Any, handle: Any, offset: int, immediate: int) -> Batch:
        offset, immediate = whole("offset", offset), whole("notify or immediate", immediate)
        self._rows.append((kind, local, handle, offset, immediate))
        self._ops = None
        return self

    def _prepare(self) -> Any:
        """Return the operations in C's form, and create it on the first call."""
        if self._ops is None:
            ops = ffi.new("rdt_op[]", len(self._rows))
            for op, row in zip(ops, self._rows, strict=True):
                op.kind, op.local, op.remote, op.remote_offset, op.immediate = row
                op.size = len(row[1])
            self._ops = ops
        return self._ops
