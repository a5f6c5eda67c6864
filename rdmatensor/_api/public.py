# SPDX-License-Identifier: Apache-2.0
"""The public names of `rdmatensor`, which the package imports at their first use."""

from __future__ import annotations

try:
    from .._ffi import ffi, lib
except ImportError as error:
    from pathlib import Path

    if (Path(__file__).parents[2] / "CMakeLists.txt").exists():
        raise ImportError(
            "rdmatensor is being imported from its sources, which hold no compiled module: build it "
            "(make build, or pip install --no-build-isolation --editable .)"
        ) from error
    raise

from .. import config
from ..device import Device, DeviceStats, Notification
from ..errors import (
    Cancelled,
    ConnectionFailure,
    ConnectionLost,
    ConnectionRefused,
    DataCorrupted,
    DeadlineExceeded,
    DeviceError,
    RdmaError,
    RegionError,
    Unsupported,
    UsageError,
)
from ..group import Group, GroupInfo, Operation
from .batch import Batch
from .buffers import empty
from .checksum import crc32c
from .region import Access, Region, RemoteRegion
from .remote import Capability, RemoteDevice
from .transfer import Transfer

__version__: str = bytes(ffi.string(lib.rdt_version())).decode()

__all__ = [
    "Access",
    "Batch",
    "Cancelled",
    "Capability",
    "ConnectionFailure",
    "ConnectionLost",
    "ConnectionRefused",
    "DataCorrupted",
    "DeadlineExceeded",
    "Device",
    "DeviceError",
    "DeviceStats",
    "Group",
    "GroupInfo",
    "Notification",
    "Operation",
    "RdmaError",
    "Region",
    "RegionError",
    "RemoteDevice",
    "RemoteRegion",
    "Transfer",
    "Unsupported",
    "UsageError",
    "__version__",
    "config",
    "crc32c",
    "empty",
]
