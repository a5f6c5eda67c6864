# SPDX-License-Identifier: Apache-2.0
"""What every test may use."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
# The core and the Python API are complete without TensorFlow, and so are their tests.
collect_ignore = [] if importlib.util.find_spec("tensorflow") else ["tensorflow", "demo"]


@pytest.fixture(scope="session")
def root() -> Path:
    """The folder of the sources."""
    return ROOT


@pytest.fixture(scope="session", autouse=True)
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Tests run outside the sources: a Python started there would import those, which are not built."""
    before = Path.cwd()
    os.chdir(tmp_path_factory.mktemp("elsewhere"))
    yield
    os.chdir(before)
