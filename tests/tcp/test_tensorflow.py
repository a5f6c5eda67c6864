# SPDX-License-Identifier: Apache-2.0
"""TensorFlow over tcp: values, training and failures, with the plugin's own tests."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys

import pytest

from support import TESTS

SECONDS = 900
FILES = ["test_values.py", "test_training.py", "test_failures.py"]


@pytest.mark.timeout(SECONDS + 20)
@pytest.mark.skipif(not importlib.util.find_spec("tensorflow"), reason="TensorFlow is missing")
def test_plugin_over_tcp() -> None:
    """Of the ways in which tensors are got, one: over tcp they differ less than in shared memory."""
    chosen = "not read and not planned"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", chosen]
        + [str(TESTS / "plugin" / name) for name in FILES],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        env={**os.environ, "RDMATENSOR_TRANSPORTS": "tcp", "PYTHONDONTWRITEBYTECODE": "1"},
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed and int(passed[1]) >= 10, done.stdout
