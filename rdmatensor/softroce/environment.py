# SPDX-License-Identifier: Apache-2.0
"""Environment variables that commands in a guest receive."""

from __future__ import annotations

import os
from pathlib import Path

# A command needs these to find programs, libraries and modules, and to print readable text.
PASSED = (
    *("HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "LOGNAME", "PATH"),
    *("PYTHONPATH", "TERM", "TZ", "USER", "VIRTUAL_ENV"),
)
PREFIX = "RDMATENSOR_"
# Hosts of a lab accept each other only if they share a secret.
SECRET = {"RDMATENSOR_SECRET_FILE": "/.rdmatensor-lab/secret"}


def for_commands() -> dict[str, str]:
    """Return the current values of PASSED and of all variables that start with RDMATENSOR_."""
    return {
        name: value
        for name, value in os.environ.items()
        if name in PASSED or name.startswith(PREFIX)
    }


def of_lab(rank: int, addresses: tuple[str, ...], shared: Path, device: str) -> dict[str, str]:
    """Return the variables that tell a command where it runs."""
    return {
        "RDMATENSOR_LAB_RANK": str(rank),
        "RDMATENSOR_LAB_HOSTS": str(len(addresses)),
        "RDMATENSOR_LAB_ADDRESSES": ",".join(addresses),
        "RDMATENSOR_LAB_SHARED": str(shared),
        "RDMATENSOR_LAB_DEVICE": device,
    }
