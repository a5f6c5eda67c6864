# SPDX-License-Identifier: Apache-2.0
"""rdmatensor: a remote machine is a device whose memory you allocate, read and write one-sidedly.

    with rdmatensor.Device() as device:
        region = device.allocate(1024, "float32", name="weights")   # peers can reach this
        remote = device.connect("host:port")                        # another process's device
        remote.region("weights").write(array).wait()                # the peer's code takes no part

The TensorFlow plugin (protocol="grpc+rdma") needs no import: see rdmatensor.tensorflow.
"""

import ast
from importlib import import_module
from pathlib import Path
from typing import Any

# The list of public names is __init__.pyi, which type checkers read as well. Each is imported when it is
# first used, so that rdmatensor.softroce works without the compiled library.
_stub = ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
_modules = {
    name.name: node.module or name.name
    for node in _stub.body
    if isinstance(node, ast.ImportFrom)
    for name in node.names
}
__all__ = sorted(_modules)


def __getattr__(name: str) -> Any:
    if name not in _modules:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import_module("._api.library", __name__)
    module = import_module(f".{_modules[name]}", __name__)
    value = module if _modules[name] == name else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
