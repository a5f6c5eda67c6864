# SPDX-License-Identifier: Apache-2.0
"""Tests of the runner, with test files that are made up; make test SUITE=conformance runs TensorFlow's."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest


@dataclass
class Done:
    """What conformance.py did."""

    status: int
    said: str
    results: dict[str, Any]
    out: Path


@pytest.fixture
def sources(tmp_path: Path) -> Callable[..., str]:
    """sources(name, text): adds a test file to the folder tmp_path/source, and gives its path there."""

    def add(name: str, text: str) -> str:
        path = f"tensorflow/python/made_up/{name}.py"
        file = tmp_path / "source" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"# Copyright\n{text}")
        return path

    return add


@pytest.fixture
def conformance(tmp_path: Path) -> Callable[..., Done]:
    """conformance(files, option, ...): runs the program on test files of the fixture sources."""

    def run(files: str, *options: str) -> Done:
        out = tmp_path / "out"
        command: list[str | Path] = [sys.executable, "-m", "conformance.run", "--out", out]
        done = subprocess.run(
            [*command, "--source", tmp_path / "source", "--files", files, *options],
            capture_output=True,
            text=True,
            timeout=110,
        )
        results = out / "results.json"
        found = json.loads(results.read_text())["files"] if results.exists() else {}
        return Done(done.returncode, done.stdout + done.stderr, found, out)

    return run
