# SPDX-License-Identifier: Apache-2.0
"""Counts of the faults that the setting FAULTS injects into this process's transports, for tests.

docs/faults.md tells which there are. Usable from any thread.
"""

from __future__ import annotations

from ._ffi import ffi, lib
from .errors import _text


def counts() -> dict[str, int]:
    """Return how many faults of each kind have happened since the process began."""
    name, count = ffi.new("const char **"), ffi.new("uint64_t *")
    found: dict[str, int] = {}
    while lib.rdt_fault_count(len(found), name, count) == lib.RDT_OK:
        found[_text(name[0])] = int(count[0])
    return found
