# SPDX-License-Identifier: Apache-2.0
"""The short form of `make fuzz`: every corpus again, and a second of fuzzing on each."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent


@pytest.mark.timeout(420)
def test_what_comes_from_outside_breaks_nothing(root: Path) -> None:
    spec = importlib.util.spec_from_file_location("fuzz_run", HERE / "run.py")
    assert spec is not None
    assert spec.loader is not None
    run = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = run
    spec.loader.exec_module(run)
    results, _ = run.run_all(1, 1, [], root / "build" / "fuzz")
    names = {each.harness for each in results}
    assert {"wire", "device", "ring", "group", "meeting", "plan", "config"} <= names
    for each in results:
        assert not each.failed, each.output
        assert each.executed > 0
