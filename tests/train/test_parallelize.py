# SPDX-License-Identifier: Apache-2.0
"""parallelize() chooses by what it measures, refuses what it cannot do, and its models are saved whole."""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rdmatensor.train.embeddings.benchmark import needs_measurement
from rdmatensor.train.embeddings.choice import Costs, Size, curve, fitted, partitions
from rdmatensor.train.embeddings.placement import WAYS
from support import warm
from train.ranks import Ranks, run

pytestmark = pytest.mark.timeout(600)

REFUSALS = {
    "constraint": "owners: it has a constraint",
    "regularizer": "owners: it has a regularizer",
    "LoRA": "owners: it has LoRA weights",
    "tied": "owners: another layer uses its table",
    "used later": "rows of t are in several processes",
    "float16": "float16, not float32",
    "float64 is gathered": '"gather" only: its numbers are float64',
    "own call": "owners: Own may use the whole table",
    "no sample": "give it sample=",
    "no batch": "has no batch",
    "no such layer": "no embedding 'x'",
    "no such way": "'magic' is none of dense, gather, owners",
    "twice": "parallelized already",
    "not built": "give it an Input",
    "compiled": "before compile()",
    "another model": "compile() the model that parallelize() returned",
    "tape": "a tape cannot serve tables",
    "explain": "takes the model that parallelize() returned",
    "export": "save() it, load that file",
    "sharded": "Sharded and parallelize() cannot share",
    "local SGD": "trained synchronously",
}


def test_what_cannot_be_done_is_refused(tmp_path: Path) -> None:
    for answer in run("refused", 2, tmp_path):
        assert answer.keys() == REFUSALS.keys()
        for name, words in REFUSALS.items():
            assert words in answer[name], name


def test_the_choice_follows_the_sample(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    answers = run("chosen", 2, tmp_path, page=str(page))
    assert answers[0] == answers[1]
    tables = answers[0]["tables"]
    # 2048 ids of 60,000, drawn with replacement.
    assert tables["large"]["share"] == pytest.approx(2048 / 60_000, rel=0.1)
    assert tables["small"]["share"] == 1
    # Ways that are predicted to be close are measured, and a busy machine measures anything. Given costs are
    # tested below.
    for name in ("small", "large"):
        why = re.match(r"fastest(?: of (\d), measured|, computed)", tables[name]["why"])
        assert why, tables[name]
        seconds = tables[name]["seconds"]
        slower = [each for each in seconds.values() if each >= seconds[tables[name]["way"]]]
        assert len(slower) >= int(why[1] or len(seconds)), tables[name]
    assert tables["frozen"]["why"].startswith("frozen")
    assert tables["limited"]["way"] != "owners" and "constraint" in tables["limited"]["why"]
    for name in ("small", "large", "frozen", "limited"):
        assert name in answers[0]["text"] and name in page.read_text()
    assert "<svg" in page.read_text()


@pytest.mark.long
def test_models_are_saved_whole_and_go_on_with_another_number(tmp_path: Path) -> None:
    def train(size: int, name: str, **more: Any) -> Any:
        answers = run("tables_resumed", size, tmp_path, backup=str(tmp_path / name), **more)
        assert all(each == answers[0] for each in answers[1:] if size == 1)
        for each in answers:
            assert each["weights"] == answers[0]["weights"]
            assert "nowhere" in each["says"]
        return answers[0]

    whole = train(2, "whole", epochs=3)
    # What the program has saved, and what a callback of rank 0 has.
    files = tmp_path / "model.keras", tmp_path / "parts.keras"
    losses = []
    for epochs, size in enumerate((4, 1, 2), start=1):
        parts = train(size, "parts", epochs=epochs, save=str(files[0]))
        losses += parts["losses"]
    np.testing.assert_allclose(losses, whole["losses"], rtol=1e-4)
    for found, expected in zip(parts["weights"], whole["weights"], strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-5)
    code = (
        f"import keras, sys; models = map(keras.models.load_model, {list(map(str, files))!r});"
        "weights = [x for model in models for x in model.trainable_variables];"
        "assert not [name for name in sys.modules if name.startswith('rdmatensor.train')];"
        "print(*[float(x) for each in weights for x in each.numpy().ravel()])"
    )
    loaded = subprocess.run(
        [warm.python(), "-c", code], capture_output=True, text=True, timeout=300, check=False
    )
    assert loaded.returncode == 0, loaded.stderr[-4000:]
    expected = [x for each in parts["weights"] for x in each] * len(files)
    np.testing.assert_allclose([float(x) for x in loaded.stdout.split()], expected, rtol=1e-6)


def test_ways_are_measured_where_predictions_leave_a_doubt() -> None:
    costs = Costs({"dense": (1e-4, 1e-9, 0), "gather": (2e-4, 4e-9, 0), "owners": (5e-4, 2e-9, 0)})
    close, clear = Size(3000, 64, 900, 230), Size(10, 4, 10, 3)
    huge = Size(10_000_000, 64, 900, 230)
    found = needs_measurement(costs, [close, clear, huge], [WAYS, WAYS, WAYS], 4)
    # 0.29, 0.43 and 0.62 ms; 0.10, 0.20 and more.
    assert found[:2].tolist() == [[1, 1, 0], [1, 0, 0]]
    assert found[2].sum() == 1, "too large to be made again"
    assert needs_measurement(costs, [close], [("owners",)], 4).tolist() == [[0, 0, 1]], (
        "decided already"
    )
    # The slowest ones count, and tables that are alike are one.
    many = [replace(close, rows=3000 + i) for i in range(12)] + [replace(close, rows=3011)]
    measured = needs_measurement(costs, many, [WAYS] * 13, 4).sum(1) > 1
    assert measured.tolist() == [False] * 4 + [True] * 9


@pytest.mark.parametrize("phase", ["ids", "rows", "gradients", "a measurement"])
def test_a_process_dies(phase: str, tmp_path: Path) -> None:
    with Ranks("dying", 3, tmp_path, phase=phase) as ranks:
        ranks.wait_for(1, "there")
        ranks.kill(1)
        for rank in (0, 2):
            answer = ranks.answer(rank)
            assert answer["kind"] in ("UnavailableError", "AbortedError"), answer
            assert "rank 1" in answer["says"] or "member 1" in answer["says"], answer


@given(st.integers(10, 1 << 20), st.floats(0.001, 0.999), st.integers(3, 64))
def test_owners_send_least(rows: int, share: float, size: int) -> None:
    table = Size(rows, 64, rows * share, rows * share / size)
    sent = {way: table.sent_bytes(way, size) for way in ("dense", "gather", "owners")}
    assert sent["owners"] < sent["dense"] and sent["owners"] < sent["gather"]
    assert sent["dense"] == pytest.approx(2 * rows * 64 * 4 * (size - 1) / size)


@given(
    st.tuples(st.floats(1e-6, 1e-2), st.floats(1e-10, 1e-8), st.floats(0, 1e-8)),
    st.lists(
        st.tuples(st.floats(1e3, 1e7), st.floats(1e3, 1e6)), min_size=3, max_size=6, unique=True
    ),
)
def test_costs_explain_measurements(costs: Any, sizes: Any) -> None:
    points = [(a, b, costs[0] + costs[1] * a + costs[2] * b) for a, b in sizes]
    found = fitted(points)
    assert min(found) >= 0
    for a, b, seconds in points:
        assert found[0] + found[1] * a + found[2] * b == pytest.approx(seconds, rel=0.35)


def test_the_fastest_way_is_chosen() -> None:
    costs = Costs({"dense": (1e-4, 1e-9, 0), "gather": (2e-4, 4e-9, 0), "owners": (5e-4, 2e-9, 0)})
    few = Size(100_000, 64, 1000, 260)
    many = Size(100_000, 64, 50_000, 12_600)
    assert costs.best(few, 4) == "gather"
    assert costs.best(many, 4) == "dense"
    assert costs.best(Size(1_000_000, 64, 20_000, 5_000), 4) == "owners"
    assert costs.best(Size(1_000_000, 64, 20_000, 5_000), 4, ("dense", "gather")) == "gather"


def test_partitions_follow_the_curve() -> None:
    samples = {2: 9.5, 4: 6.5, 8: 8.25}
    b, a, c = curve(samples)
    for count, seconds in samples.items():
        assert b / count + a * (count - 1) + c == pytest.approx(seconds)
    assert partitions(samples, 4) == 4
    assert partitions({2: 1.0, 4: 2.0, 8: 4.0}, 4) == 2
    assert partitions({4: 4.0, 8: 2.0, 16: 1.0}, 4) == 16
    assert partitions({4: 1.0, 8: 0.98, 16: 0.97}, 4) == 4  # not worth it
    assert partitions({1: 2.0, 2: 1.0}, 2) == 2
