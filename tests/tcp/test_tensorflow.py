# SPDX-License-Identifier: Apache-2.0
"""TensorFlow over tcp: values, training, collectives, eager operations and failures, with the plugin's own
tests."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from support import TESTS, WHOLE, failure_table

SECONDS = 3000 if WHOLE else 900
FILES = ["test_values.py", "test_training.py", "test_failures.py"]
FILES += ["test_collectives.py", "test_remote_eager.py"]
# Of the ways in which tensors are got, one: over tcp they differ less than in shared memory. Of collective
# operations, those of two and of four members.
CHOSEN = "not read and not planned and not types_and_reductions and not -3 and not with_stock and not choose"
pytestmark = [
    pytest.mark.timeout(SECONDS + 20),
    pytest.mark.skipif(not importlib.util.find_spec("tensorflow"), reason="TensorFlow is missing"),
]


def run(*words: str | Path, **settings: str) -> int:
    """How many of the tests that `words` name pass over tcp; none may fail."""
    variables = {"RDMATENSOR_TRANSPORTS": "tcp", "PYTHONDONTWRITEBYTECODE": "1", **settings}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *words],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        env={**os.environ, **variables},
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed, done.stdout
    return int(passed[1])


def test_plugin_over_tcp() -> None:
    """`make test SUITE=tcp` takes all of tests/plugin. What needs shared memory is skipped there."""
    if WHOLE:
        assert run("-n", "3", "--no-loadscope-reorder", TESTS / "plugin") >= 400
    else:
        assert run("-k", CHOSEN, *(TESTS / "plugin" / name for name in FILES)) >= 40


@pytest.mark.skipif(not WHOLE, reason="`make test SUITE=encrypted` runs it")
def test_plugin_encrypted(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.touch(0o600)
    secret.write_text("the secret of the suite")
    settings = {"RDMATENSOR_SECRET_FILE": str(secret), "RDMATENSOR_ENCRYPT": "on"}
    settings[failure_table.VARIABLE] = ""
    assert run(*(TESTS / "plugin" / name for name in FILES), **settings) >= 60
