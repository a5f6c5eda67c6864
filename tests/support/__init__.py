# SPDX-License-Identifier: Apache-2.0
"""Helpers that several folders of the tests share.

The folder tests is on Python's path, so a test imports `support.NAME`, and FOLDER.NAME for a helper of one
folder. pyproject.toml says so to pytest, and tests/conftest.py to the processes that tests start.
"""

from __future__ import annotations

import os
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent
ROOT = TESTS.parent
# Whether long forms run too: tests marked `long`, and cases of which others show the same kind of fault.
WHOLE = any(os.environ.get(f"RDMATENSOR_TEST_{name}") for name in ("WHOLE", "SANITIZE"))
