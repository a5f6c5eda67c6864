# SPDX-License-Identifier: Apache-2.0
"""The driver of `make bench`: parts that fail are named, the others are in the record."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from rich.console import Console

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))

driver = pytest.importorskip("run", reason="bench/run.py needs the extra bench")


def stage(name: str, code: str, **more: float) -> object:
    return driver.Stage(name, [sys.executable, "-c", code], **more)


GOOD = """
import pathlib, sys
from rdmatensor.bench import record
run = record.Run("good", record.Environment.here())
run.results.append(record.Result("s", sys.argv[1], "w", "s", [1.0]))
run.write(pathlib.Path(sys.argv[-1]))
"""


def test_what_fails_is_named_and_the_rest_goes_on() -> None:
    stages = [
        stage("breaks", "raise SystemExit(3)"),
        stage("mute", "pass"),
        stage("slow", "import time; time.sleep(60)", patience_s=1.0),
        stage("good", GOOD),
    ]
    runs, faults = driver.run_stages(stages, True, Console(quiet=True))
    assert faults == [
        "breaks ended with status 3",
        "mute wrote no record",
        "slow took longer than 1 s and was ended",
    ]
    assert [result.case for run in runs for result in run.results] == ["--quick"]


def test_every_program_of_the_set_is_there() -> None:
    for each in driver.STAGES:
        files = [Path(word) for word in each.command if word.endswith(".py")]
        assert all(file.is_file() for file in files), each.name
    names = [each.name for each in driver.STAGES]
    assert len(set(names)) == len(names)
