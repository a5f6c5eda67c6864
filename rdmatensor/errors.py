# SPDX-License-Identifier: Apache-2.0
"""Exceptions, grouped by the largest thing that broke, so that a caller knows what to rebuild."""

from __future__ import annotations

from ._ffi import ffi, lib


class RdmaError(Exception):
    """Base of every error of this package.

    `status` is the C library's name of the error ("CONNECTION_LOST"), `code` its number. The text
    tells the cause, the device, the peer and what to do.
    """

    def __init__(self, message: str, status: str = "INVALID") -> None:
        super().__init__(message)
        self.status = status

    @property
    def code(self) -> int:
        return int(getattr(lib, f"RDT_ERR_{self.status}", lib.RDT_ERR_INVALID))


class UsageError(RdmaError, ValueError):
    """The call itself is wrong: a bad argument, a closed object, a device used after fork."""


class Unsupported(RdmaError):
    """The transport in use cannot do this, or not with this memory."""


class Cancelled(RdmaError):
    """The operation was cancelled, or pending when this side closed the channel."""


class DeviceError(RdmaError):
    """The local device failed: no memory, a system call, a limit, or it is closed."""


class ConnectionFailure(RdmaError, ConnectionError):
    """Base of what ends, or prevents, a connection."""


class ConnectionLost(ConnectionFailure):
    """The peer is gone. Connect again: other connections of the device go on."""


class ConnectionRefused(ConnectionFailure):
    """No connection came about: unreachable, refused, another protocol, no common transport."""


class DataCorrupted(ConnectionFailure):
    """Bytes changed on their way (RDMATENSOR_CHECKSUM). The connection goes on: do it again."""


class DeadlineExceeded(RdmaError, TimeoutError):
    """The time-out of the call passed. What it waited for may still happen."""


class RegionError(RdmaError):
    """The region does not exist, does not permit this access, or ends before the last byte."""


_CLASSES: dict[str, type[RdmaError]] = {
    "INVALID": UsageError,
    "UNSUPPORTED": Unsupported,
    "CANCELLED": Cancelled,
    "FORKED": UsageError,
    "NO_MEMORY": DeviceError,
    "SYSTEM": DeviceError,
    "LIMIT": DeviceError,
    "CLOSED": DeviceError,
    "UNREACHABLE": ConnectionRefused,
    "CONNECTION_LOST": ConnectionLost,
    "DEADLINE": DeadlineExceeded,
    "PROTOCOL": ConnectionRefused,
    "REFUSED": ConnectionRefused,
    "NO_TRANSPORT": ConnectionRefused,
    "CORRUPTED": DataCorrupted,
    "NO_REGION": RegionError,
    "ACCESS": RegionError,
    "RANGE": RegionError,
}


def _text(pointer: object) -> str:
    return bytes(ffi.string(pointer)).decode("utf-8", "replace")


def status_name(status: int) -> str:
    """The name of a status code, "UNKNOWN" outside the table."""
    return _text(lib.rdt_status_name(status))


def error_from(status: int) -> RdmaError:
    """The exception for a status that the calling thread's last C call returned."""
    name = status_name(status)
    message = _text(lib.rdt_last_error()) or _text(lib.rdt_status_text(status))
    return _CLASSES.get(name, RdmaError)(message, name)


def check(status: int) -> None:
    """Raises unless `status`, just returned by a C call of this thread, is a success."""
    if status < 0:
        raise error_from(status)
