# SPDX-License-Identifier: Apache-2.0
"""What the doctor makes of machines that are not here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rdmatensor import config
from rdmatensor._tools.doctor import examine, framework, machine, names

MB = 1 << 20


@pytest.mark.parametrize(
    ("built", "here", "state", "remedy"),
    [
        ({"tensorflow": "2.21.0"}, "", "ok", ""),
        ({"tensorflow": "2.21.0"}, "2.21.3", "ok", ""),
        ({"tensorflow": "2.21.0"}, "2.20.0", "fail", "pip install 'tensorflow==2.21.*'"),
        ({"tensorflow": "2.20.0, 2.21.0"}, "2.20.1", "ok", ""),
        ({"tensorflow": "2.20.0, 2.21.0"}, "2.2.0", "fail", "pip install 'tensorflow==2.21.*'"),
        ({"tensorflow": "2.21.0, 2.22.0rc0"}, "2.22.0rc1", "ok", ""),
        (
            {"tensorflow": "2.21.0, 2.22.0rc0"},
            "2.19.0",
            "fail",
            "pip install 'tensorflow==2.21.*'",
        ),
        ({"tensorflow": "", "no_tensorflow_because": "asked"}, "2.21.0", "warn", "pip install"),
        ({}, "2.21.0", "warn", "pip install"),
    ],
)
def test_plugin_and_tensorflow(
    monkeypatch: pytest.MonkeyPatch, built: dict[str, Any], here: str, state: str, remedy: str
) -> None:
    monkeypatch.delenv("RDMATENSOR_DISABLE", raising=False)
    monkeypatch.setattr(framework, "build_info", lambda: built)
    monkeypatch.setattr(framework, "version", lambda: here)
    finding = framework.finding(thoroughly=False)
    assert finding.state == state and remedy in finding.remedy, finding


@pytest.mark.parametrize(
    ("text", "why_not", "not_shared", "state"),
    [
        ("CUDA 12.4, cuda:0 is some GPU", "", "", "ok"),
        ("CUDA 12.4, cuda:0 is some GPU", "", "operation not supported", "ok"),
        ("", "libcuda.so.1 is not installed: it belongs to NVIDIA's driver", "", "ok"),
        ("", "cannot start CUDA's driver (see nvidia-smi): unknown error", "", "warn"),
    ],
)
def test_the_driver_of_cuda(text: str, why_not: str, not_shared: str, state: str) -> None:
    finding = machine.cuda({"text": text, "why_not": why_not, "not_shared": not_shared})
    assert finding.state == state and text + why_not in finding.text
    assert not_shared in finding.text and ("tcp" in finding.text) == bool(not_shared)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({}, "tensors and what starts steps leave gRPC"),
        ({"CONTROL": "grpc"}, "what starts steps does not (RDMATENSOR_CONTROL=grpc)"),
        ({"POLICY": "grpc"}, "everything goes by gRPC (RDMATENSOR_POLICY=grpc)"),
    ],
)
def test_what_leaves_grpc(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, str], told: str
) -> None:
    monkeypatch.delenv("RDMATENSOR_DISABLE", raising=False)
    monkeypatch.setattr(framework, "build_info", lambda: {"tensorflow": "2.21.0"})
    monkeypatch.setattr(framework, "version", lambda: "2.21.0")
    standard = {"CONTROL": "auto", "POLICY": "auto"}
    monkeypatch.setattr(config, "get", (standard | settings).__getitem__)
    assert told in framework.finding(thoroughly=False).text


@pytest.mark.parametrize(("name", "state"), [("cubic", "ok"), ("bbr", "warn"), (None, None)])
def test_congestion_control(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str | None, state: str | None
) -> None:
    file = tmp_path / "tcp_congestion_control"
    if name:
        file.write_text(f"{name}\n")
    monkeypatch.setattr(machine, "_CONGESTION", file)
    found = list(machine.congestion())
    assert [each.state for each in found] == ([state] if state else [])
    assert all("cubic" in each.remedy for each in found if each.state == "warn")


@pytest.mark.parametrize(
    ("verbs", "left", "state"),
    [
        (False, 1, "ok"),  # shared memory locks nothing
        (True, None, "ok"),  # no limit
        (True, 200 * MB, "ok"),
        (True, 64 * MB, "warn"),  # connections, but not the arena
        (True, 7 * MB, "fail"),  # not even the rings of one connection
    ],
)
def test_locked_memory(verbs: bool, left: int | None, state: str) -> None:
    sizes = {"ARENA_LIMIT": 100 * MB}
    report = {
        "registrable": left,
        "settings": [{"name": name, "number": number} for name, number in sizes.items()],
    }
    finding = machine.memlock(verbs, report)
    assert finding.state == state, finding
    assert ("ulimit -l" in finding.remedy) == (state != "ok")


def distribution(site: Path, name: str) -> None:
    """Installs a package graph_analyzer as pip does."""
    (site / "graph_analyzer").mkdir(parents=True, exist_ok=True)
    (site / "graph_analyzer" / "__init__.py").touch()
    info = site / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "RECORD").write_text("graph_analyzer/__init__.py,,\n")


def test_another_distribution_has_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert names.finding().state == "ok"
    monkeypatch.syspath_prepend(tmp_path)
    distribution(tmp_path, "graph-analyzer-of-others")
    found = names.finding()
    assert found.state == "fail" and "graph-analyzer-of-others" in found.text
    assert found.remedy.startswith("pip uninstall graph-analyzer-of-others && pip install")


def test_another_folder_has_the_name(tmp_path: Path) -> None:
    """In the folder where Python is started."""
    (tmp_path / "graph_analyzer.py").touch()
    done = subprocess.run(
        [sys.executable, "-m", "rdmatensor", "doctor", "--quick", "--json"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
    )
    (found,) = (each for each in json.loads(done.stdout)["findings"] if each["area"] == "packages")
    assert done.returncode == 1 and found["state"] == "fail"
    assert str(tmp_path / "graph_analyzer.py") in found["text"]
    command = [sys.executable, "-m", "rdmatensor", "plan", "--help"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert done.returncode == 1
    assert "run rdmatensor doctor" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("settings", "error", "state", "remedy"),
    [
        ({"ENCRYPT": "off", "POLICY": "auto"}, "", "ok", ""),
        ({"ENCRYPT": "on", "POLICY": "auto"}, "", "warn", "export RDMATENSOR_POLICY=rdma"),
        ({"ENCRYPT": "on", "POLICY": "rdma"}, "", "ok", ""),
        ({"ENCRYPT": "on", "POLICY": "rdma"}, "SECRET_FILE", "fail", "RDMATENSOR_SECRET_FILE=~"),
        ({"ENCRYPT": "on", "POLICY": "rdma"}, "verbs", "fail", "unset RDMATENSOR_ENCRYPT"),
    ],
)
def test_encryption(settings: dict[str, str], error: str, state: str, remedy: str) -> None:
    rows = [{"name": name, "value": value} for name, value in settings.items()]
    errors = [f"RDMATENSOR_ENCRYPT=on and {error}"] if error else []
    finding = examine.encryption({"settings": rows, "errors": errors})
    assert finding.state == state and remedy in finding.remedy, finding
