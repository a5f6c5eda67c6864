# SPDX-License-Identifier: Apache-2.0
"""Several operations posted as one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .._ffi import ffi, lib
from ..errors import UsageError
from . import buffers, cuda
from .arguments import whole
from .buffers import Buffer
from .region import RemoteRegion

if TYPE_CHECKING:
    from .remote import RemoteDevice


class OnDevice(NamedTuple):
    """A tensor in CUDA memory, which each post copies."""

    data: Any


class Prepared(NamedTuple):
    """Operations in C's form, what they use, and what is to be called once they have succeeded."""

    ops: Any
    rows: list[tuple[int, Any, Any, int, int]]
    back: Callable[[], None] | None


class Batch:
    """A list of operations that RemoteDevice.post executes in the order in which they were added.

    RemoteDevice.batch() creates it. Each post sends what the buffers hold at that moment, so a batch can be
    posted any number of times. The batch keeps its buffers alive. Do not change it in one thread while
    another one posts it. Arrays must be C-contiguous. Tensors in CUDA memory are copied as RemoteRegion does,
    by each post.
    """

    def __init__(self, remote: RemoteDevice) -> None:
        self._remote = remote
        self._rows: list[tuple[int, Any, Any, int, int]] = []
        self._ready: Prepared | None = None

    def write(
        self, region: RemoteRegion, data: Buffer, offset: int = 0, notify: int | None = None
    ) -> Batch:
        """Add what RemoteRegion.write posts."""
        kind = lib.RDT_OP_WRITE if notify is None else lib.RDT_OP_WRITE_NOTIFY
        return self._add(
            kind,
            self._local(data, buffers.source),
            self._checked(region),
            offset,
            0 if notify is None else notify,
        )

    def read_into(self, region: RemoteRegion, array: Buffer, offset: int = 0) -> Batch:
        """Add what RemoteRegion.read_into posts."""
        return self._add(
            lib.RDT_OP_READ, self._local(array, buffers.target), self._checked(region), offset, 0
        )

    def notify(self, payload: Buffer = b"", immediate: int = 0) -> Batch:
        """Add what RemoteDevice.notify posts."""
        return self._add(
            lib.RDT_OP_NOTIFY, self._local(payload, buffers.source), ffi.NULL, 0, immediate
        )

    def __len__(self) -> int:
        return len(self._rows)

    def _local(self, data: Any, host: Callable[[Any], Any]) -> Any:
        """Return the bytes of `data` as `host` does, or `data` if it lies in CUDA memory."""
        if data.__class__ is np.ndarray or not cuda.is_cuda(data):
            return host(data)
        checked = cuda.array_of if host is buffers.source else cuda.writable
        checked(data)
        return OnDevice(data)

    def _checked(self, region: RemoteRegion) -> Any:
        if not isinstance(region, RemoteRegion):
            raise UsageError(f"{region!r} is no RemoteRegion")
        if region._remote is not self._remote:
            raise UsageError(f"{region!r} cannot be used in a batch for {self._remote!r}")
        return region._need_handle()

    def _add(self, kind: int, local: Any, handle: Any, offset: int, immediate: int) -> Batch:
        offset, immediate = whole("offset", offset), whole("notify or immediate", immediate)
        self._rows.append((kind, local, handle, offset, immediate))
        self._ready = None
        return self

    def _prepare(self) -> Prepared:
        """Return the operations in C's form. Without CUDA memory, they are the same until one is added."""
        if self._ready is not None:
            return self._ready
        copies = self._remote._device._copies
        rows: list[tuple[int, Any, Any, int, int]] = []
        backs: list[Callable[[], None]] = []
        for kind, local, handle, offset, immediate in self._rows:
            if not isinstance(local, OnDevice):
                host = local
            elif kind == lib.RDT_OP_READ:
                host, back = copies.target(local.data)
                if back is not None:
                    backs.append(back)
            else:
                host = copies.source(local.data)
            rows.append((kind, host, handle, offset, immediate))
        ops = ffi.new("rdt_op[]", len(rows))
        for op, row in zip(ops, rows, strict=True):
            op.kind, op.local, op.remote, op.remote_offset, op.immediate = row
            op.size = len(row[1])

        def finish() -> None:
            for back in backs:
                back()

        ready = Prepared(ops, rows, finish if backs else None)
        if not any(isinstance(row[1], OnDevice) for row in self._rows):
            self._ready = ready
        return ready
