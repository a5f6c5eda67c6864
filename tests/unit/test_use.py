# SPDX-License-Identifier: Apache-2.0
"""rdmatensor.tensorflow.use() in a process that has not imported TensorFlow."""

from __future__ import annotations

import subprocess
import sys

import pytest

_ATTEMPT = """
try:
    tensorflow.use({})
    print()
except Exception as error:
    print(type(error).__name__, error)
"""


def _after(*calls: str) -> list[str]:
    """What calls of use() raised, "" for nothing, and the settings in force at the end."""
    code = "from rdmatensor import config, tensorflow"
    code += "".join(_ATTEMPT.format(call) for call in calls)
    code += "print(config.get('POLICY'), config.get('TRANSPORTS'))"
    run = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=60
    )
    assert run.returncode == 0, run.stderr
    return run.stdout.splitlines()


def test_settings_are_put_in_force() -> None:
    assert _after("policy='rdma', transport='shm'") == ["", "rdma shm"]
    assert _after("transport=['verbs', 'shm']", "policy='grpc'") == ["", "", "grpc verbs,shm"]
    assert _after("") == ["", "auto shm,verbs"]


@pytest.mark.parametrize(
    ("call", "error"),
    [
        ("policy='always'", "UsageError there is no policy 'always': choose from"),
        ("transport='tcp'", "UsageError there is no transport 'tcp': choose from"),
        ("policy='grpc', require=True", "UsageError policy"),
        ("require=True", "Unsupported grpc+rdma is required, but "),
    ],
)
def test_refused_calls_change_nothing(call: str, error: str) -> None:
    raised, settings = _after(call)
    assert raised.startswith(error)
    assert settings == "auto shm,verbs"
