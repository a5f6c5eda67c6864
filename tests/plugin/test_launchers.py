# SPDX-License-Identifier: Apache-2.0
"""Workers whose launcher writes a TF_CONFIG that names no protocol, as Kubeflow's and Ray's do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support import ROOT, warm
from support.ports import free_ports

SECONDS = 90.0
PLACED = ["-m", "rdmatensor", "launch", "--place", "TF_CONFIG"]


def workers(commands: list[list[str]], more: dict[str, str]) -> list[Any]:
    """What the workers of a cluster say, each started by a command of its own."""
    addresses = [f"127.0.0.1:{port}" for port in free_ports(len(commands))]
    started = []
    try:
        for index, command in enumerate(commands):
            config = {
                "cluster": {"worker": addresses},
                "task": {"type": "worker", "index": index},
                **more,
            }
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=os.environ | {"TF_CONFIG": json.dumps(config)},
                text=True,
            )
            started.append(process)
        lines = [each.stdout.readline() for each in started if each.stdout]
        ends = [each.communicate(timeout=SECONDS) for each in started]
    finally:
        for each in started:
            each.kill()
    for each, (_, errors) in zip(started, ends, strict=True):
        assert each.returncode == 0, errors[-4000:]
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize("more", [{"environment": "cloud"}, {}], ids=["Kubeflow", "Ray"])
def test_collectives_go_by_rdmatensor(more: dict[str, str]) -> None:
    """One worker calls use(); the other is a stock program behind `rdmatensor launch --place TF_CONFIG`."""
    program, python = str(Path(__file__).with_name("launched.py")), warm.python()
    said = workers(
        [[python, program, "use"], [sys.executable, *PLACED, python, program, "stock"]], more
    )
    for each in said:
        assert each["protocol"] == "grpc+rdma"
        assert each["sum"] == [3.0, 3.0]
        assert each["collectives"]["by_tensorflow"] == {}
        assert each["collectives"]["served_by_grpc"]["bytes"] == 0
        assert each["collectives"]["operations"]["all_reduce"]["bytes"] >= 4000
        assert {group["transport"] for group in each["collectives"]["groups"]} == {"rdmatensor"}


@pytest.mark.timeout(300)
def test_ray_starts_the_workers(tmp_path: Path) -> None:
    pytest.importorskip("ray.train.tensorflow", reason="no Ray: make test SUITE=whole installs it")
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / "ray_train.py", "2"],
        cwd=tmp_path,
        env=os.environ | {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS": "0"},
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    # Ray prints the workers' lines, each twice: as they come, and at the end.
    said = [line for line in (done.stdout + done.stderr).splitlines() if "collectives by" in line]
    assert len(said) >= 2 and all("by {'rdmatensor'}" in line for line in said), said


def test_without_a_word_they_stay_on_grpc() -> None:
    """That is what both of the above change."""
    command = [warm.python(), str(Path(__file__).with_name("launched.py")), "stock"]
    for each in workers([command, command], {"environment": "cloud"}):
        assert each["protocol"] is None
        assert each["servers"] == []
        assert each["sum"] == [3.0, 3.0]
