# SPDX-License-Identifier: Apache-2.0
"""rdmatensor: a remote machine is a device whose memory you allocate, read and write one-sidedly.

    with rdmatensor.Device() as device:
        region = device.allocate(1024, "float32", name="weights")   # peers can reach this
        remote = device.connect("host:port")                        # another process's device
        remote.region("weights").write(array).wait()                # without its taking part

The TensorFlow plugin (protocol="grpc+rdma") needs no import: see rdmatensor.tensorflow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import config
    from ._api.batch import Batch
    from ._api.buffers import empty
    from ._api.checksum import crc32c
    from ._api.region import Access, Region, RemoteRegion
    from ._api.remote import Capability, RemoteDevice
    from ._api.transfer import Transfer
    from .device import Device, DeviceStats, Notification
    from .errors import (
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
    from .group import Group, GroupInfo, Operation

    __version__: str

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


def __getattr__(name: str) -> Any:
    """Loads the compiled module when something of it is used: rdmatensor.softroce needs none."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from ._api import public

    value = getattr(public, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
