# SPDX-License-Identifier: Apache-2.0
"""rdmatensor: a remote machine is a device whose memory you allocate, read and write one-sidedly.

    with rdmatensor.Device() as device:
        region = device.allocate(1024, "float32", name="weights")   # peers can reach this
        remote = device.connect("host:port")                        # another process's device
        remote.region("weights").write(array).wait()                # the peer's code takes no part

The TensorFlow plugin (protocol="grpc+rdma") needs no import: see rdmatensor.tensorflow.
"""

from ._api.lazy import attach

# The public names, by the module that has them; __init__.pyi lists them for type checkers. Each is imported
# when it is first used, so that rdmatensor.softroce works without the compiled library.
_HOMES = {
    "": "config",
    "_api.batch": "Batch",
    "_api.buffers": "Array Buffer Shape SupportsCudaArray SupportsDLPack empty",
    "_api.checksum": "crc32c",
    "_api.collective": "Algorithm Kind Op Tree",
    "_api.dlpack": "MemoryKind",
    "_api.group_calls": "Operation",
    "_api.library": "__version__",
    "_api.region": "Access Region RemoteRegion",
    "_api.remote": "Capability RemoteDevice",
    "_api.transfer": "Transfer",
    "device": "Device DeviceStats Notification Transport",
    "errors": (
        "Cancelled Closed ConnectionFailure ConnectionLost ConnectionRefused DataCorrupted DeadlineExceeded "
        "DeviceError RdmaError RegionError Unsupported UsageError"
    ),
    "group": "Group GroupInfo",
    "store": "Arrival Member Pulled Store",
}
__all__ = sorted(" ".join(_HOMES.values()).split())
__getattr__ = attach(__name__, _HOMES, first="_api.library")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
