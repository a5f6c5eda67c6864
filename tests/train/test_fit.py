# SPDX-License-Identifier: Apache-2.0
"""Keras's fit in several processes is fit in one, with the batches of all."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support import ROOT, WHOLE, warm
from train.ranks import Ranks, run

pytestmark = pytest.mark.timeout(600)
OPTIMIZERS = ["sgd", "adam", "accumulate", *(["global_clipnorm", "ema"] if WHOLE else [])]
FITS: dict[str, dict[str, Any]] = {
    **{name: {"optimizer": name} for name in OPTIMIZERS},
    "steps at once": {"optimizer": "adam", "at_once": 2},
    "buckets for some": {"optimizer": "sgd", "bucket_bytes": 600},
    "bfloat16": {"optimizer": "sgd", "compression": "bfloat16"},
    "batch norm": {"optimizer": "sgd", "batch_norm": True},
    "validated": {"optimizer": "adam", "validate": True},
    "compiled": {"optimizer": "adam", "compiled": True, "validate": True},
    "unbuilt": {"optimizer": "sgd", "form": "unbuilt"},
    "bare trainer": {"optimizer": "adam", "form": "bare", "compiled": True},
}
if WHOLE:
    FITS |= {
        "eager": {"optimizer": "sgd", "eager": True},
        "a bucket for each": {"optimizer": "sgd", "bucket_bytes": 1},
        "compiled at once": {"optimizer": "adam", "compiled": True, "at_once": 2},
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fit")


# One process trains as it does with this one.
ALONE = {"a bucket for each": "sgd", "buckets for some": "sgd", "bfloat16": "sgd", "eager": "sgd",
         "steps at once": "adam", "compiled": "validated", "compiled at once": "adam",
         "unbuilt": "sgd", "bare trainer": "adam"}  # fmt: skip


@pytest.fixture(scope="module")
def fitted(folder: Path) -> dict[int, list[dict[str, Any]]]:
    """What each process has after each of FITS, by the number of processes."""
    found = {}
    different = [name for name in FITS if name not in {*ALONE, "batch norm"}]
    for size, names in ((1, different), (2, list(FITS))):
        answers = run("fits", size, folder, each=[FITS[name] for name in names])
        found[size] = [dict(zip(names, answer, strict=True)) for answer in answers]
    (alone,) = found[1]
    alone |= {name: alone[other] for name, other in ALONE.items() if name in FITS}
    return found


def _compare(answers: list[Any], expected: Any, tolerance: float = 2e-5) -> None:
    """All processes have the weights of one process alone."""
    for answer in answers:
        np.testing.assert_array_equal(answer["weights"], answers[0]["weights"])
        np.testing.assert_allclose(answer["weights"], expected["weights"], atol=tolerance)
        assert answer["steps"] == expected["steps"]
        assert answer["logs"] == answers[0]["logs"]
        for name, values in expected["logs"].items():
            np.testing.assert_allclose(answer["logs"][name], values, atol=max(tolerance, 1e-4))


@pytest.mark.parametrize("name", [name for name in FITS if name not in ("batch norm", "bfloat16")])
def test_equals_one_process(fitted: dict[int, list[Any]], name: str) -> None:
    _compare([answer[name] for answer in fitted[2]], fitted[1][0][name])


def test_evaluates_and_predicts_as_one_process(fitted: dict[int, list[Any]]) -> None:
    expected = fitted[1][0]["validated"]
    assert {"val_loss", "val_accuracy"} <= set(expected["logs"])  # which the test above compares
    for answer in (each["validated"] for each in fitted[2]):
        np.testing.assert_allclose(answer["evaluated"], expected["evaluated"], atol=1e-4)
        np.testing.assert_allclose(answer["predicted"], expected["predicted"], atol=1e-4)


@pytest.mark.parametrize(
    "how",
    [
        {"jit_compile": "auto", "gpu": True},
        pytest.param({"jit_compile": True, "own": True}, marks=pytest.mark.long),
    ],
    ids=["for a GPU", "own step"],
)
def test_xla_compiles_what_does_not_communicate(folder: Path, how: dict[str, Any]) -> None:
    first, second = run("parts", 2, folder, **how)
    (plain, _) = run("parts", 2, folder, **how | {"jit_compile": False})
    assert first["clusters"] > 0 == plain["clusters"]
    assert first["between"] == plain["between"] != []
    assert first["weights"] == second["weights"]
    np.testing.assert_allclose(first["weights"], plain["weights"], atol=2e-5)


def test_compression_costs_little(fitted: dict[int, list[Any]]) -> None:
    answers = [answer["bfloat16"] for answer in fitted[2]]
    _compare(answers, fitted[1][0]["bfloat16"], tolerance=0.02)
    assert answers[0]["weights"] != fitted[2][0]["sgd"]["weights"]  # it was compressed


def test_statistics_of_batch_normalization_are_averaged(fitted: dict[int, list[Any]]) -> None:
    first, second = (answer["batch norm"] for answer in fitted[2])
    assert first["state"] == second["state"]
    assert first["weights"] == second["weights"]


@pytest.mark.long
def test_four_processes(folder: Path, fitted: dict[int, list[Any]]) -> None:
    _compare(run("fit", 4, folder, optimizer="adam"), fitted[1][0]["adam"])


def test_progress_bar_is_rank_0s(folder: Path) -> None:
    with Ranks("fit", 2, folder, optimizer="sgd") as ranks:
        texts = [process.communicate(timeout=500)[0].decode() for process in ranks.processes]
    assert "Epoch 1/2" in texts[0]
    assert "Epoch" not in texts[1]


def test_embedding(folder: Path) -> None:
    (expected,) = run("embeddings", 1, folder)
    for answer in run("embeddings", 2, folder):
        np.testing.assert_allclose(answer[0], expected[0], atol=1e-5)
        np.testing.assert_allclose(answer[1], expected[1], atol=1e-5)


def test_rows_of_unequal_numbers(folder: Path) -> None:
    # Ranks 0, 1, 2 have 2, 1, 0 rows of 1, 2, 3.
    third = [[1.0, 1.0], [1 / 3, 1 / 3], *[[0.0, 0.0]] * 3]
    for answer in run("rows", 3, folder):
        np.testing.assert_allclose(answer, third, rtol=1e-6)


def test_infinity_in_one_process(folder: Path) -> None:
    first, second = run("infinities", 2, folder)
    assert first == second
    for answer in first:
        assert answer["steps"] == 1
        assert answer["scale"] == 2.0**14  # half of what it begins with
        assert np.isfinite(answer["weights"]).all()


def test_loop_by_hand(folder: Path) -> None:
    ((_, expected),) = run("tape", 1, folder)
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
        [warm.python(), "-c", program], capture_output=True, text=True, timeout=500, check=False
    )
    assert loaded.returncode == 0, loaded.stderr[-3000:]
    assert loaded.stdout.split() == ["keras.src.optimizers.adam", "2"]


@pytest.mark.long
def test_resumes_where_it_was_killed(folder: Path, tmp_path: Path) -> None:
    whole = run("resume", 2, folder, backup=str(tmp_path / "whole"), stop_after=None)
    backup = str(tmp_path / "backup")
    assert run("resume", 2, folder, backup=backup, stop_after=2) == ["killed", "killed"]
    after = run("resume", 2, folder, backup=backup, stop_after=None)
    for answer in after:
        np.testing.assert_allclose(answer["losses"], whole[0]["losses"][2:], atol=1e-6)
        np.testing.assert_allclose(answer["weights"], whole[0]["weights"], atol=1e-6)


def test_example(tmp_path: Path) -> None:
    command = [warm.python(), "-m", "rdmatensor", "launch", "-n", "2"]
    example = [str(ROOT / "examples" / "keras_fit.py"), str(tmp_path / "backup")]
    done = subprocess.run(
        [*command, *example], capture_output=True, text=True, timeout=500, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    (found,) = re.findall(r"\[worker 0\] 2 processes, loss \S+ accuracy (\S+)", done.stdout)
    assert float(found) > 0.9
    assert "[worker 1] Epoch" not in done.stdout
    assert "ran out of memory" not in done.stderr


@pytest.mark.parametrize(
    "example", [pytest.param("text_transformer", marks=pytest.mark.long), "word_embeddings"]
)
def test_examples_on_a_text(example: str) -> None:
    command = [warm.python(), "-m", "rdmatensor", "launch", "-n", "2"]
    arguments = [
        str(ROOT / "examples" / f"{example}.py"),
        str(ROOT / "docs" / "architecture.md"),
        "8",
    ]
    done = subprocess.run(
        [*command, *arguments], capture_output=True, text=True, timeout=500, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    (loss,) = re.findall(r"\[worker 0\] 2 processes, loss (\S+)", done.stdout)
    assert float(loss) < (4.5 if example == "text_transformer" else 0.6932)
    assert "waited for by others" in done.stdout
    assert "[worker 1] Epoch" not in done.stdout


def test_warm_up(folder: Path) -> None:
    for rates in run("warmup", 2, folder):
        np.testing.assert_allclose(rates[:9], 0.8 * (0.5 + np.arange(9) / 16), rtol=1e-5)
        np.testing.assert_allclose(rates[9:], 0.8, rtol=1e-5)


@pytest.mark.parametrize("known", [True, False], ids=["counted", "uncounted"])
def test_shards_are_equal(folder: Path, known: bool) -> None:
    answers = run("shards", 3, folder, count=11, known=known)
    assert answers == [[[i, 2 * i] for i in range(rank, 9, 3)] for rank in range(3)]


@pytest.mark.long
def test_trees_are_packed_anew_between_epochs(tmp_path: Path) -> None:
    answers = run("watched", 2, tmp_path)
    for looks, count, plain, text in answers:
        assert count >= 1 + 3  # at the start, and after each epoch
        np.testing.assert_allclose(looks["weights"], plain["weights"], atol=2e-5)
        assert looks["weights"] == answers[0][0]["weights"]
        assert "processes that wait for each other" in text and "init() with topology=" in text
