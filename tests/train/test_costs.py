# SPDX-License-Identifier: Apache-2.0
"""What training cost: statistics, metrics, `rdmatensor top`, traces, and the table at the end of fit."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from rdmatensor._tools.commands import top
from rdmatensor._tools.watching import View
from rdmatensor.train.costs import Row, table
from train.ranks import Ranks

pytestmark = pytest.mark.timeout(600)
BUCKETS = [f"gradients {i} of 4 of sgd" for i in range(1, 5)]


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What each process prints."""
    folder = tmp_path_factory.mktemp("costs")
    with Ranks("measured", 2, folder, traces=str(folder)) as ranks:
        texts = [process.communicate(timeout=500)[0].decode() for process in ranks.processes]
        assert all(process.returncode == 0 for process in ranks.processes), ranks.log(0)
    return texts


@pytest.fixture(scope="module")
def answers(texts: list[str]) -> list[Any]:
    import json

    return [json.loads(text.splitlines()[-1]) for text in texts]


def test_statistics(answers: list[Any]) -> None:
    for rank, (found, *_) in enumerate(answers):
        assert (found["rank"], found["size"]) == (rank, 2)
        for name in BUCKETS:
            costs = found["operations"][name]
            assert (costs["operations"], costs["failed"]) == (7, 0)
            assert 0 <= costs["waited_seconds"] <= costs["seconds"]
            assert 0 < costs["longest_seconds"] <= costs["seconds"]
        weights = 4 * (12 * 16 + 16 + 16 * 4 + 4)
        assert sum(found["operations"][name]["bytes"] for name in BUCKETS) == 7 * weights
        assert found["sent_bytes"] > 0
        assert 0 < found["exposed_seconds"] <= found["busy_seconds"]


def test_the_late_process_is_known(answers: list[Any]) -> None:
    first = answers[0][0]
    assert first["late"][1]["waited_seconds"] > 6 * 0.04
    assert first["late"][0]["operations"] == 0


def test_metrics_and_top(answers: list[Any]) -> None:
    for found, training, *_ in answers:
        assert training["rank"] == str(found["rank"])
        assert {each["operation"] for each in training["operations"]} == set(found["operations"])
        assert training["late"].keys() == {"0", "1"}
    shown = _shown({**answers[0][1], "late": {"0": 0.0, "1": 0.25}, "waiting": 0.25})
    assert "rank 0 of 2" in shown
    assert "waits 0.25, mostly for rank 1" in shown
    assert re.search(
        "what losses are divided by|gradients 1 of 4 of sgd|the model at the start", shown
    )


def test_every_metric_is_documented(answers: list[Any], root: Path) -> None:
    page = (root / "docs/metrics.md").read_text()
    documented = re.findall(r"^\| `(rdmatensor_train_\w+)", page, re.M)
    assert sorted(answers[0][3]) == sorted(documented)


def _shown(training: Mapping[str, Any]) -> str:
    memory = {f"arena_{name}_bytes": 0.0 for name in ("limit", "reserved", "used", "peak")}
    view = View("here:1", plugin=True, training=dict(training))
    view.memory = {**memory, "place_bytes": 0.0}
    view.credits = {"busy_per_s": 0.0, "queued_per_s": 0.0, "pending": 0.0}
    out = io.StringIO()
    for part in top._task(view):
        Console(file=out, width=200).print(part)
    return out.getvalue()


def test_trace_has_buckets_and_computation(answers: list[Any]) -> None:
    for _, _, events, _ in answers:
        rows = {
            each["tid"]: each["args"]["name"] for each in events if each["name"] == "thread_name"
        }
        assert set(BUCKETS) <= set(rows.values())
        for name in BUCKETS:
            mine = [each for each in events if each["ph"] == "X" and rows[each["tid"]] == name]
            ends = {each["name"]: each["ts"] + each["dur"] for each in mine}
            assert ends["fill"] <= ends["reduce"] + 1 <= ends["finish"] + 2
            assert set(ends) <= {"fill", "late", "reduce", "finish"}
        computed = [each for each in events if rows.get(each["tid"], "").startswith("computation")]
        assert any("MatMul" in each["name"] for each in computed)


def test_table_at_the_end(texts: list[str]) -> None:
    assert re.search(
        r"rank +steps +examples/s +sent +exposed +waited +waited for by others", texts[0]
    )
    for rank in (0, 1):
        assert re.search(rf"^ +{rank} +6 +\d+ +[\d.]+ .?B ", texts[0], re.MULTILINE), texts[0]
    assert "examples/s" not in texts[1]


def test_table() -> None:
    rows = [Row(10, 640, 2, 5e6, 0.5, 1), Row(10, 0, 2, 5e6, 0.5, 0)]
    lines = table(rows, [[0, 1], [0.25, 0]]).splitlines()
    assert [line.split() for line in lines[1:]] == [
        [
            "0",
            "10",
            "320",
            "5",
            "MB",
            "0.50",
            "s",
            "(25",
            "%)",
            "1.00",
            "s",
            "(50",
            "%)",
            "0.25",
            "s",
        ],
        ["1", "10", "-", "5", "MB", "0.50", "s", "(25", "%)", "0.00", "s", "(0", "%)", "1.00", "s"],
    ]
