# SPDX-License-Identifier: Apache-2.0
"""Turn objects into bytes, also functions of the main program if cloudpickle is installed."""

from __future__ import annotations

from pickle import loads

try:
    from cloudpickle import dumps  # type: ignore[import-untyped]
except ImportError:
    from pickle import dumps

__all__ = ["dumps", "loads"]
