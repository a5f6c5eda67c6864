# SPDX-License-Identifier: Apache-2.0
"""Training between two hosts, over tcp, is training in one process: fit(), sharded, with tables, split."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support import warm
from support.network import CARD, two_hosts

SECONDS = 300
pytestmark = [
    pytest.mark.timeout(2 * SECONDS + 60),
    pytest.mark.skipif(not importlib.util.find_spec("tensorflow"), reason="TensorFlow is missing"),
]
TASK = Path(__file__).with_name("training_task.py")
# By name: a case of tests/train/cases.py, and its arguments.
CALLS: dict[str, tuple[str, dict[str, Any]]] = {
    "fit": ("fit", {"optimizer": "adam"}),
    "sharded": ("sharded", {"names": ["adam"]}),
    "tables": ("table", {"optimizer": "keras.optimizers.Adagrad(0.05)"}),
    "split": ("split_cases", {"calls": {"it": ("split_fit", {"split": {}, "epochs": 1})}}),
}
WHOLE = {
    **CALLS,
    "tables": ("table", {**CALLS["tables"][1], "plain": True}),
    "split": ("split_cases", {"calls": {"it": ("split_fit", {"epochs": 1})}}),
}


def run(command: Sequence[str | Path], folder: Path, calls: Any) -> list[dict[str, Any]]:
    """What each process has, by rank."""
    folder.mkdir()
    done = subprocess.run(
        [*command, TASK, folder, json.dumps(calls)],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", "RDMATENSOR_TRANSPORTS": "tcp"},
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-4000:]}\n{done.stderr[-8000:]}"
    return [json.loads(each.read_text()) for each in sorted(folder.iterdir())]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What one process has, without anything that shares a model."""
    (found,) = run([warm.python()], tmp_path_factory.mktemp("alone") / "found", WHOLE)
    return found


@pytest.fixture(scope="module")
def apart(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What two processes have, one on each host."""
    with two_hosts() as network:
        hosts = ",".join(f"{host.namespace}={host.address}" for host in network[:2])
        command = [sys.executable, "-m", "rdmatensor", "launch", "--hosts", hosts]
        command += ["--ssh", "ip netns exec"]
        found = run(command, tmp_path_factory.mktemp("apart") / "found", CALLS)
        for host, answer in zip(network[:2], found, strict=True):
            crossed = host.run("cat", f"/sys/class/net/{CARD}/statistics/tx_bytes")
            answer["place"]["expected"] = host.address
            answer["place"]["crossed"] = int(crossed)
    return found


def test_every_byte_crosses_the_network(apart: list[dict[str, Any]]) -> None:
    assert len(apart) == 2
    for answer in apart:
        place = answer["place"]
        assert place["address"].startswith(f"{place['expected']}:")
        assert place["crossed"] > place["sent"] > 10_000


def test_fit(apart: list[dict[str, Any]], alone: dict[str, Any]) -> None:
    expected = alone["fit"]
    for answer in (each["fit"] for each in apart):
        assert answer["weights"] == apart[0]["fit"]["weights"]
        assert answer["steps"] == expected["steps"] > 0
        np.testing.assert_allclose(answer["weights"], expected["weights"], atol=2e-5)
        np.testing.assert_allclose(answer["logs"]["loss"], expected["logs"]["loss"], atol=1e-4)


def test_sharded_optimizer(apart: list[dict[str, Any]], alone: dict[str, Any]) -> None:
    expected = alone["sharded"]["adam"]["whole"]
    for answer in apart:
        whole, parts = answer["sharded"]["adam"]["whole"], answer["sharded"]["adam"]["parts"]
        assert parts["weights"] == whole["weights"]
        assert parts["state"] < whole["state"] == expected["state"]
        np.testing.assert_allclose(parts["weights"], expected["weights"], atol=2e-5)


def test_tables_with_owners(apart: list[dict[str, Any]], alone: dict[str, Any]) -> None:
    for answer in apart:
        for found, weights in zip(answer["tables"], alone["tables"], strict=True):
            np.testing.assert_allclose(found, weights, atol=1e-5)


def test_split_model(apart: list[dict[str, Any]], alone: dict[str, Any]) -> None:
    expected = alone["split"]["it"]
    assert not expected["strips"]
    answers = [each["split"]["it"] for each in apart]
    for answer in answers:
        assert answer["strips"]
        np.testing.assert_allclose(answer["losses"], expected["losses"], atol=2e-5)
    np.testing.assert_allclose(answers[0]["weights"], expected["weights"], atol=2e-5)
