# SPDX-License-Identifier: Apache-2.0
"""The version of the compiled library, and an explanation where that library is missing."""

from __future__ import annotations

from pathlib import Path

try:
    from .._ffi import ffi, lib
except ModuleNotFoundError as error:
    if (Path(__file__).parents[2] / "CMakeLists.txt").exists():
        raise ImportError(
            "rdmatensor is being imported from its sources, which hold no compiled module: build it "
            "(make build, or pip install --no-build-isolation --editable .)"
        ) from error
    raise

__version__: str = bytes(ffi.string(lib.rdt_version())).decode()
