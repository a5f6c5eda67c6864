# SPDX-License-Identifier: Apache-2.0
"""CRC32C, computed with the processor's instruction where it has one."""

from __future__ import annotations

from .._ffi import lib
from . import buffers
from .arguments import whole
from .buffers import Buffer


def crc32c(buffer: Buffer, value: int = 0) -> int:
    """Return the CRC32C (RFC 3720) of the bytes of `buffer`.

    `value` is the checksum of the bytes before them. `buffer` is bytes, a numpy array or anything else that
    has C-contiguous bytes. It is not copied, and the interpreter lock is released meanwhile. Raises
    UsageError for any other buffer, and for a `value` that does not fit into 32 bits.
    """
    value = whole("value", value, most=2**32 - 1)
    data = buffers.source(buffer)
    return int(lib.rdt_crc32c(value, data, len(data)))
