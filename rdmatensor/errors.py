# SPDX-License-Identifier: Apache-2.0
"""Exceptions, grouped by what broke, so that a caller knows what to rebuild."""

from __future__ import annotations

from ._ffi import ffi, lib


class RdmaError(Exception):
    """The base of all errors of this package.

    `status` is the C library's name of the error, such as "CONNECTION_LOST", and `code` is its number. The
    text names the cause, the device, the peer and the remedy.
    """

    def __init__(self, message: str, status: str = "INVALID") -> None:
        super().__init__(message)
        self.status = status

    @property
    def code(self) -> int:
        """The C library's number of the error."""
        return int(getattr(lib, f"RDT_ERR_{self.status}", lib.RDT_ERR_INVALID))


class UsageError(RdmaError, ValueError):
    """The call itself is wrong: an argument's type or value, a setting, a device used after fork."""


class Unsupported(RdmaError):
    """The transport in use cannot do this, or not with this memory."""


class Cancelled(RdmaError):
    """The operation was cancelled, or this side closed the channel before it was complete."""


class Closed(RdmaError, ValueError):
    """The object was closed, here, before the call or while it waited. Open another one."""

    def __init__(self, message: str, status: str = "CLOSED") -> None:
        super().__init__(message, status)


class DeviceError(RdmaError, OSError):
    """The local device failed: it has no memory, a system call failed, or a limit was hit."""


class ConnectionFailure(RdmaError, ConnectionError):
    """The base of errors that end or prevent a connection."""


class ConnectionLost(ConnectionFailure, ConnectionResetError):
    """The peer is gone. Connect again. Other connections of the device are not affected."""


class ConnectionRefused(ConnectionFailure, ConnectionRefusedError):
    """No connection was made: the peer is unreachable or refused, or nothing fits both sides."""


class DataCorrupted(RdmaError):
    """Bytes changed on their way (RDMATENSOR_CHECKSUM). The connection is intact: repeat the operation."""


class DeadlineExceeded(RdmaError, TimeoutError):
    """The time-out of the call has passed. What it waited for may still happen."""

    def __init__(self, message: str, status: str = "DEADLINE") -> None:
        super().__init__(message, status)


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
    "CLOSED": Closed,
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


def error_from(status: int) -> RdmaError:
    """Return the exception for a status that the calling thread's last C call returned."""
    name = _text(lib.rdt_status_name(status))
    message = _text(lib.rdt_last_error()) or _text(lib.rdt_status_text(status))
    return _CLASSES.get(name, RdmaError)(message, name)


def check(status: int) -> None:
    """Raise unless `status`, which a C call of this thread just returned, is a success."""
    if status < 0:
        raise error_from(status)
