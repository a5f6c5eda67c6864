# SPDX-License-Identifier: Apache-2.0
"""Measures how much time examples/svm.py saves by eliminating samples.

Four processes train with elimination and without it, in turns.

Each way has two figures: the time until the slowest process ends, and the processor time of all processes.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from harness import Bench, main
from team import members

EXAMPLES = Path(__file__).parents[1] / "examples"
MEMBERS = 4
# Data sets and their samples. With fewer, each iteration's all-gather takes most of the time.
CASES = {"moons": 40000, "circles": 40000, "wide": 16000, "classes": 16000}
WAYS = ("none", "early")
TARGET = 1.6
SUITES = {
    "seconds": f"support vector machine, {MEMBERS} processes",
    "cpu": f"support vector machine, processor time of {MEMBERS} processes",
}


def libsvm(name: str, count: int) -> float:
    """The objective of scikit-learn's SVC."""
    sys.path.insert(0, str(EXAMPLES))
    import svm

    return float(svm.reference(svm.case(name, count))[0])


def compare(bench: Bench, name: str, count: int, turns: int) -> None:
    with members("svm_member", MEMBERS, {"OPENBLAS_NUM_THREADS": "1"}) as processes:
        answers = {
            way: lambda way=way: processes.ask("train", 1500.0, name=name, count=count, way=way)[0]
            for way in WAYS
        }
        found: dict[str, list[Any]] = {way: [] for way in WAYS}
        for _ in range(turns):
            for way in WAYS:
                found[way].append(answers[way]())
    right = libsvm(name, count)
    for way, own in found.items():
        off = max(abs(each["objective"] / right - 1) for each in own)
        if off > 1e-3:
            bench.run.faults.append(f"{name}, {way}: the objective differs by {off:.1e}")
        for figure, suite in SUITES.items():
            samples = [each[figure] for each in own]
            bench.add(
                *(suite, f"{name}, {count} samples", f"elimination: {way}", samples),
                rival=("", None) if way == WAYS[0] else (f"elimination: {WAYS[0]}", TARGET),
            )


def measure(bench: Bench, turns: int = 3) -> None:
    for name in bench.wanted(list(CASES)):
        compare(bench, name, CASES[name] // (4 if bench.quick else 1), turns)


if __name__ == "__main__":
    main(measure)
