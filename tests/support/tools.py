# SPDX-License-Identifier: Apache-2.0
"""Programs that tests build with."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest


def tool(name: str) -> str | None:
    """The program of that name: the one beside this Python, or the system's."""
    return shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)


def cmake() -> str:
    """CMake; without it the test is skipped."""
    return tool("cmake") or pytest.skip("no cmake")


def compiler() -> str:
    """The system's C compiler; without it the test is skipped."""
    return shutil.which("cc") or shutil.which("gcc") or pytest.skip("no C compiler")
