# SPDX-License-Identifier: Apache-2.0
"""Keras's fit in several processes is fit in one, with the batches of all."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from train.ranks import Ranks, run

OPTIMIZERS = ["sgd", "adam", "adamw_clipnorm", "global_clipnorm", "clipvalue", "accumulate", "ema"]


@cache
def _alone(folder: Path, case: str, arguments: str) -> Any:
    return run(case, 1, folder, **json.loads(arguments))[0]


def _compare(folder: Path, case: str, size: int = 2, tolerance: float = 2e-5, **more: Any) -> list[Any]:
    """All processes have the weights of one process alone."""
    alone = {name: value for name, value in more.items() if name not in ("bucket_bytes", "compression")}
    expected = _alone(folder, case, json.dumps(alone, sort_keys=True))
    answers = run(case, size, folder, **more)
    for answer in answers:
        np.testing.assert_array_equal(answer["weights"], answers[0]["weights"])
        np.testing.assert_allclose(answer["weights"], expected["weights"], atol=tolerance)
        assert answer["steps"] == expected["steps"]
        assert answer["logs"] == answers[0]["logs"]
        for name, values in expected["logs"].items():
            np.testing.assert_allclose(answer["logs"][name], values, atol=1e-4)
    return answers


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fit")


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_equals_one_process(folder: Path, optimizer: str) -> None:
    _compare(folder, "fit", optimizer=optimizer)


def test_four_processes(folder: Path) -> None:
    _compare(folder, "fit", size=4, optimizer="adam")


@pytest.mark.parametrize(
    "more",
    [{"eager": True}, {"bucket_bytes": 1}, {"bucket_bytes": 600}],
    ids=["eager", "one_each", "some_each"],
)
def test_other_ways(folder: Path, more: dict[str, Any]) -> None:
    _compare(folder, "fit", optimizer="sgd", **more)


@pytest.mark.parametrize("compression", ["float16", "bfloat16"])
def test_compression_costs_little(folder: Path, compression: str) -> None:
    answers = _compare(folder, "fit", optimizer="sgd", compression=compression, tolerance=0.02)
    plain = run("fit", 2, folder, optimizer="sgd")
    assert answers[0]["weights"] != plain[0]["weights"]  # it was compressed


def test_statistics_of_batch_normalization_are_averaged(folder: Path) -> None:
    answers = run("fit", 2, folder, optimizer="sgd", batch_norm=True)
    assert answers[0]["state"] == answers[1]["state"]
    assert answers[0]["weights"] == answers[1]["weights"]


def test_progress_bar_is_rank_0s(folder: Path) -> None:
    with Ranks("fit", 2, folder, optimizer="sgd") as ranks:
        texts = [process.communicate(timeout=180)[0].decode() for process in ranks.processes]
    assert "Epoch 1/2" in texts[0]
    assert "Epoch" not in texts[1]


@pytest.mark.parametrize("share", [False, True], ids=["apart", "same_rows"])
def test_embedding(folder: Path, share: bool) -> None:
    expected = _alone(folder, "embedding", json.dumps({"share": share}))
    for answer in run("embedding", 2, folder, share=share):
        np.testing.assert_allclose(answer, expected, atol=1e-5)


def test_rows_of_unequal_numbers(folder: Path) -> None:
    # Ranks 0, 1, 2 have 2, 1, 0 rows of 1, 2, 3.
    third = [[1.0, 1.0], [1 / 3, 1 / 3], *[[0.0, 0.0]] * 3]
    for answer in run("rows", 3, folder):
        np.testing.assert_allclose(answer, third, rtol=1e-6)


@pytest.mark.parametrize("layer_policy", [False, True], ids=["global", "of_the_model"])
def test_infinity_in_one_process(folder: Path, layer_policy: bool) -> None:
    first, second = run("infinity", 2, folder, layer_policy=layer_policy)
    assert first == second
    assert first["steps"] == 1
    assert first["scale"] == 2.0**14  # half of what it begins with
    assert np.isfinite(first["weights"]).all()


def test_loop_by_hand(folder: Path) -> None:
    (_, expected) = _alone(folder, "tape", "{}")
    for _, weights in run("tape", 2, folder):
        np.testing.assert_allclose(weights, expected, atol=2e-5)


def test_saved_model_loads_without_us(folder: Path) -> None:
    path = folder / "model.keras"
    first, second = run("save", 2, folder, path=str(path))
    assert first == second
    assert first[0] == "Adam"
    program = (
        "import sys; sys.modules['rdmatensor'] = None\n"
        "import keras, json\n"
        f"model = keras.models.load_model({str(path)!r})\n"
        "print(type(model.optimizer).__module__, int(model.optimizer.iterations.numpy()))\n"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=110, check=False
    )
    assert loaded.returncode == 0, loaded.stderr[-3000:]
    assert loaded.stdout.split() == ["keras.src.optimizers.adam", "2"]


def test_resumes_where_it_was_killed(folder: Path, tmp_path: Path) -> None:
    whole = run("resume", 2, folder, folder=str(tmp_path / "whole"), stop_after=None)
    backup = str(tmp_path / "backup")
    assert run("resume", 2, folder, folder=backup, stop_after=2) == ["killed", "killed"]
    after = run("resume", 2, folder, folder=backup, stop_after=None)
    for answer in after:
        np.testing.assert_allclose(answer["losses"], whole[0]["losses"][2:], atol=1e-6)
        np.testing.assert_allclose(answer["weights"], whole[0]["weights"], atol=1e-6)


def test_warm_up(folder: Path) -> None:
    for rates in run("warmup", 2, folder):
        np.testing.assert_allclose(rates[:9], 0.8 * (0.5 + np.arange(9) / 16), rtol=1e-5)
        np.testing.assert_allclose(rates[9:], 0.8, rtol=1e-5)


@pytest.mark.parametrize("known", [True, False], ids=["counted", "uncounted"])
def test_shards_are_equal(folder: Path, known: bool) -> None:
    answers = run("shards", 3, folder, count=11, known=known)
    assert answers == [[[i, 2 * i] for i in range(rank, 9, 3)] for rank in range(3)]
