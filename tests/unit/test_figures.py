# SPDX-License-Identifier: Apache-2.0
"""The table at the top of README.md has the figures of the reference run."""

from __future__ import annotations

import json
import re
from pathlib import Path
from statistics import median

import pytest

STEPS, COLLECTIVES = "TensorFlow steps", "collectives of TensorFlow, 2 workers"
# Where the run has each row: the suite, the case, and the way that is compared with grpc.
ROWS = {
    "training step, 17 MB of variables and gradients each way, batch 1": (
        STEPS,
        "training step, batch 1",
        "static",
    ),
    "the same, batch 32": (STEPS, "training step, batch 32", "static"),
    "1 tensor of 64 MiB, every byte read": (STEPS, "1 x 64 MiB, all read", "static"),
    "1000 tensors of 1 KiB": (STEPS, "1000 x 1 KiB", "static"),
    "all-reduce of 4 MiB, 2 workers": (COLLECTIVES, "all-reduce 4 MiB", "grpc+rdma"),
}


def rounded(text: str, value: float) -> bool:
    """Whether the number is the value to the places that it has."""
    return f"{value:.{len(text.partition('.')[2])}f}" == text


@pytest.fixture(scope="module")
def medians(root: Path) -> dict[tuple[str, str, str], float]:
    """Milliseconds by suite, case and way."""
    results = json.loads((root / "bench" / "record.json").read_text())["runs"][0]["results"]
    return {
        (each["suite"], each["case"], each["way"]): 1e3 * median(each["samples"])
        for each in results
    }


def test_the_table_of_the_readme(root: Path, medians: dict[tuple[str, str, str], float]) -> None:
    table = (root / "README.md").read_text().partition("| a step of two tasks |")[2]
    rows = re.findall(r"^\| (.+) \| ([\d.]+) ms \| ([\d.]+) ms \| ([\d.]+)x \|$", table, re.M)
    assert {name for name, *_ in rows} == set(ROWS)
    for name, *texts in rows:
        suite, case, way = ROWS[name]
        grpc, ours = medians[suite, case, "grpc"], medians[suite, case, way]
        for text, value in zip(texts, (grpc, ours, grpc / ours), strict=True):
            assert rounded(text, value), f"{name}: {text}, and the run has {value:.4g}"
