# SPDX-License-Identifier: Apache-2.0
"""rdmatensor: a remote machine is a device whose memory you allocate, read and write one-sidedly.

    with rdmatensor.Device() as device:
        region = device.allocate(1024, "float32", name="weights")   # peers can reach this
        remote = device.connect("host:port")                        # another process's device
        remote.region("weights").write(array).wait()                # the peer's code takes no part

The TensorFlow plugin (protocol="grpc+rdma") needs no import: see rdmatensor.tensorflow.
"""

from importlib import import_module

# The public names, by the module that has them; __init__.pyi lists them for type checkers. Each is imported
# when it is first used, so that rdmatensor.softroce works without the compiled library.
_NAMES = {
    "_api.batch": ["Batch"],
    "_api.buffers": ["Array", "Buffer", "MemoryKind", "Shape", "empty"],
    "_api.checksum": ["crc32c"],
    "_api.collective": ["Algorithm", "Kind", "Op", "Tree"],
    "_api.library": ["__version__"],
    "_api.region": ["Access", "Region", "RemoteRegion"],
    "_api.remote": ["Capability", "RemoteDevice"],
    "_api.transfer": ["Transfer"],
    "device": ["Device", "DeviceStats", "Notification", "Transport"],
    "errors": [
        *("Cancelled", "Closed", "ConnectionFailure", "ConnectionLost", "ConnectionRefused"),
        *("DataCorrupted", "DeadlineExceeded", "DeviceError", "RdmaError", "RegionError"),
        *("Unsupported", "UsageError"),
    ],
    "group": ["Group", "GroupInfo", "Operation"],
    "store": ["Arrival", "Member", "Pulled", "Store"],
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names}
__all__ = sorted([*_MODULES, "config"])


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import_module("._api.library", __name__)
    if name == "config":
        return import_module(".config", __name__)
    value = globals()[name] = getattr(import_module(f".{_MODULES[name]}", __name__), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
