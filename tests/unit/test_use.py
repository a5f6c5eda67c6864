# SPDX-License-Identifier: Apache-2.0
"""rdmatensor.tensorflow.use() in a process that has not imported TensorFlow."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

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
    assert _after("") == ["", "auto shm,verbs,tcp"]


# As Ray writes it. Kubeflow has "environment" besides.
PLACE = {"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 0}}


def _config_after(call: str, text: str | None) -> tuple[str, Any]:
    """What use() raised, and TF_CONFIG afterwards."""
    code = "import os; from rdmatensor import tensorflow" + _ATTEMPT.format(call)
    code += "print(os.environ.get('TF_CONFIG'))"
    run = subprocess.run(
        [sys.executable, "-P", "-c", code],
        env={k: v for k, v in os.environ.items() if k != "TF_CONFIG"}
        | ({} if text is None else {"TF_CONFIG": text}),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert run.returncode == 0, run.stderr
    raised, config = run.stdout.splitlines()
    return raised, config


@pytest.mark.parametrize("more", [{}, {"environment": "cloud"}, {"rpc_layer": ""}])
def test_a_cluster_without_a_protocol_gets_one(more: dict[str, str]) -> None:
    raised, config = _config_after("default_protocol=True", json.dumps(PLACE | more))
    assert raised == ""
    assert json.loads(config) == PLACE | more | {"rpc_layer": "grpc+rdma"}


@pytest.mark.parametrize(
    ("call", "text"),
    [
        ("default_protocol=True", json.dumps(PLACE | {"rpc_layer": "grpc"})),
        ("default_protocol=True", "{}"),
        ("default_protocol=True", None),
        ("", json.dumps(PLACE)),
    ],
)
def test_a_named_protocol_and_no_cluster_stay(call: str, text: str | None) -> None:
    assert _config_after(call, text) == ("", str(text))


@pytest.mark.parametrize(
    ("call", "text", "error"),
    [
        ("default_protocol=True", "{", "UsageError TF_CONFIG is not JSON"),
        ("default_protocol=True", "[]", "UsageError TF_CONFIG is not a JSON object"),
        (
            "default_protocol=True, policy='always'",
            json.dumps(PLACE),
            "UsageError policy 'always' not found",
        ),
    ],
)
def test_a_refused_call_leaves_the_cluster(call: str, text: str, error: str) -> None:
    raised, config = _config_after(call, text)
    assert raised.startswith(error)
    assert config == text


@pytest.mark.parametrize(
    ("call", "error"),
    [
        ("policy='always'", "UsageError policy 'always' not found; available:"),
        ("transport='udp'", "UsageError transport 'udp' not found; available:"),
        ("policy='grpc', require=True", "UsageError policy"),
        ("require=True", "Unsupported grpc+rdma is required, but "),
    ],
)
def test_refused_calls_change_nothing(call: str, error: str) -> None:
    raised, settings = _after(call)
    assert raised.startswith(error)
    assert settings == "auto shm,verbs,tcp"
