# SPDX-License-Identifier: Apache-2.0
"""When fit ends, all processes have one model, whatever callbacks and optimizers there are."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from train.ranks import run

pytestmark = pytest.mark.timeout(600)
# Means of three are not exact, and what is equal has to stay so.
SIZE = 3
APART = ["AllReduce", "Sharded", "LocalSGD", "Hierarchical"]
DIFFERENT = "processes have different models"


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    folder = tmp_path_factory.mktemp("together")
    return run("together", SIZE, folder, files=str(folder))


def _one_model(done: list[Any], name: str) -> list[Any]:
    answers = [answer[name] for answer in done]
    for answer in answers:
        assert answer[0] == answers[0][0], name
    return answers


@pytest.mark.parametrize("name", APART)
def test_best_weights_are_those_that_were_validated(done: list[Any], name: str) -> None:
    for weights, best, losses in _one_model(done, name):
        assert weights == best
        assert losses == done[0][name][2]


def test_callbacks_of_keras(done: list[Any]) -> None:
    for _, rate, epochs, best_is, says in _one_model(done, "of Keras"):
        np.testing.assert_allclose(rate, 0.05 * (0.5 * 0.9) ** 2 * 0.9, rtol=1e-5)
        assert epochs == 3 and best_is
        for each in says[:2]:
            assert "callbacks of ranks [0, 1, 2] write one file: " in each
            assert "rt.on_rank_0(callback)" in each
        assert says[2] == ""


def test_two_optimizers(done: list[Any]) -> None:
    for name in ("two optimizers", "two sharded"):
        assert [says for _, says in _one_model(done, name)] == [""] * SIZE, name
    for answer in done:
        assert DIFFERENT in answer["one of two"][1]
        assert "give each optimizer a synchronizer of its own" in answer["shared"][1]


def test_an_optimizer_of_several(done: list[Any]) -> None:
    assert [says for _, says in _one_model(done, "several in one")] == [""] * SIZE
    for answer in done:
        assert "use rt.sync.AllReduce()" in answer["several, sharded"][1]


def test_a_callback_that_acts_in_one_process(done: list[Any]) -> None:
    for name in ("moved at the end", "moved at the start", "stopped"):
        _one_model(done, name)
    for rank, answer in enumerate(done):
        assert bool(answer["moved at the end"][3]) == (rank == 0)
        assert answer["moved at the start"][1:3] == ["", 3]
        assert DIFFERENT in answer["moved on the way"][1]
        assert answer["stopped"][1:3] == ["", 1]
        assert "learning rates differ" in answer["slower"][1]
        assert "rt.callbacks(backup=FOLDER)" in answer["restores"][1]


def test_a_forgotten_line(done: list[Any]) -> None:
    for answer in done:
        assert DIFFERENT in answer["plain"][1]
        assert answer["plain"][2] == 1  # step
        fit, tape = answer["no callbacks"][1]
        assert "begin with different weights" in fit
        assert "rt.broadcast_variables(model.variables)" in tape
    _one_model(done, "no callbacks")


def test_an_optimizer_made_from_a_configuration(done: list[Any]) -> None:
    for answer in done:
        for alone, again in answer["copied"]:
            assert "call distribute() for it, too" in alone
            assert again == ""


def test_a_frozen_layer_stays_and_does_not_travel(done: list[Any]) -> None:
    for _, same, sent in _one_model(done, "frozen"):
        assert same
        assert sent == []


@pytest.mark.long
def test_averages_of_weights_are_swapped(tmp_path: Path) -> None:
    answers = run("with_averages", 2, tmp_path)
    for answer in answers:
        assert answer == answers[0]
        for name in ("Sharded False", "Sharded True", "ahead True"):
            like = answer[f"AllReduce {name.split()[1]}"]
            for found, wanted in zip(answer[name], like, strict=True):
                np.testing.assert_allclose(found, wanted, atol=1e-6, err_msg=name)
        for name in ("AllReduce", "LocalSGD"):
            assert answer[f"{name} False"][0] != answer[f"{name} None"][0]


@pytest.mark.long
def test_warm_up_goes_on_to_the_same_rate(tmp_path: Path) -> None:
    for rates in run("warmed", 2, tmp_path, backup=str(tmp_path / "kept")):
        np.testing.assert_allclose(rates["whole"][-1], 0.05, rtol=1e-6)
        np.testing.assert_allclose(rates["break"], rates["whole"], rtol=1e-6)
        np.testing.assert_allclose(rates["again"], rates["whole"], rtol=1e-6)


def test_stages_with_one_backup(tmp_path: Path) -> None:
    """Each trains; after a break, those that are over do not train again."""
    kept: dict[str, Any] = {"backup": str(tmp_path / "kept")}
    first = run("kept_twice", 2, tmp_path, stages=2, **kept)
    for found, steps, weights, (other, same) in first:
        assert found == [2, 2] and steps == 2 * 2 * 3
        assert weights == first[0][2]
        assert "folder of its own" in other or "could not load" in other
        assert "give each model a folder of its own" in same
    for found, steps, *_ in run("kept_twice", 2, tmp_path, stages=3, **kept):
        assert found == [0, 0, 2] and steps == 3 * 2 * 3


@pytest.fixture(scope="module")
def paused(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    folder = tmp_path_factory.mktemp("paused")
    return run("paused", 2, folder, backups=str(folder))


@pytest.mark.parametrize("sync", ["AllReduce", "LocalSGD", "ahead", "uneven"])
def test_goes_on_inside_an_epoch(paused: list[Any], sync: str) -> None:
    """Five batches are an epoch; every second one is kept."""
    for answer in paused:
        whole, left, (losses, weights, steps, batches) = answer[sync]
        assert left == ["crash", 1, 3]
        assert steps == whole[2] == 3 * 5
        assert batches == 2 * 5  # callbacks see those that are skipped, too
        np.testing.assert_allclose(losses, whole[0][1:], atol=1e-6)
        np.testing.assert_allclose(weights, whole[1], atol=1e-6)
        assert weights == paused[0][sync][2][1]


def test_fits_that_failed_catch_no_signal(paused: list[Any]) -> None:
    assert all(answer["handler"] for answer in paused)


def test_all_leave_when_one_is_told(paused: list[Any]) -> None:
    for answer in paused:
        left, (losses, weights, steps) = answer["told"]
        assert left == [128 + signal.SIGTERM, 1, 5]
        whole = answer["AllReduce"][0]
        assert steps == whole[2]
        np.testing.assert_allclose(losses, whole[0][1:], atol=1e-6)
        np.testing.assert_allclose(weights, whole[1], atol=1e-6)


def test_a_time_limit_stops_all(paused: list[Any]) -> None:
    for answer in paused:
        (first, _, stopped), (_, weights, steps) = answer["limit"]
        assert len(first) == stopped == 1
        assert steps == 3 * 5
        np.testing.assert_allclose(weights, answer["AllReduce"][0][1], atol=1e-6)
        assert "give backup=FOLDER too" in answer["refused"]


def test_what_a_callback_ends_in_one_process_ends_in_all(paused: list[Any]) -> None:
    """After the next step here, where processes look after each one. They are at the same step."""
    for answer in paused:
        (losses, weights, steps), (_, _, poisoned) = answer["ended"]
        assert len(losses) == 2 and steps == 5 + 4
        assert weights == paused[0]["ended"][0][1]
        # The third step has the value; a process without it sees the loss of the fourth.
        assert poisoned == 4


def test_a_model_goes_on_in_a_group_that_is_joined_again(paused: list[Any]) -> None:
    for answer in paused:
        weights, total, *errors, again, total_again = answer["again"]
        assert total == total_again == 2.0
        assert len(errors) == 3
        assert all("call rdmatensor.train.init() again" in each for each in errors), errors
        assert again == paused[0]["again"][-2] != weights
