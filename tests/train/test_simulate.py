# SPDX-License-Identifier: Apache-2.0
"""The simulator: what must hold on any cluster, and short trainings that a broken rule fails."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

pytest.importorskip("sklearn")

from rdmatensor.cli import main
from rdmatensor.simulate.problem import Problem
from rdmatensor.simulate.setting import Setting
from rdmatensor.simulate.synchronizers import SGP, SYNCHRONIZERS, AllReduce, PullGossip
from rdmatensor.train.sync import rules

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def problem() -> Problem:
    return Problem(batch=32)


def _train(name: str, problem: Problem, arguments: Any = None, **setting: Any) -> Any:
    settings = {"workers": 4, "learning_rate": 0.8, "steps": 80, "jitter": 0.1, **setting}
    return SYNCHRONIZERS[name](Setting(**settings), problem, **(arguments or {})).run()


def test_gradients_are_those_of_the_loss(problem: Problem) -> None:
    model = problem.begin(1)[None].astype(np.float64)
    gradient, _ = problem.gradients(model, np.random.default_rng(5))
    for place in (0, 100, 2048, 2100, 2405):
        losses = []
        for sign in (1, -1):
            moved = model.copy()
            moved[0, place] += sign * 1e-5
            losses.append(problem.gradients(moved, np.random.default_rng(5))[1][0])
        assert (losses[0] - losses[1]) / 2e-5 == pytest.approx(gradient[0, place], abs=1e-7)


@pytest.mark.parametrize("name", SYNCHRONIZERS)
def test_every_synchronizer_learns(name: str, problem: Problem) -> None:
    arguments = {"period": 8} if name in ("DiLoCo", "Decoupled") else None
    curve = _train(name, problem, arguments, learning_rate=0.4)
    assert curve.final > 0.9
    assert curve.nbytes[-1] > 0
    assert curve.seconds == sorted(curve.seconds)


def test_gossip_without_averaging_is_noticed(
    problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers that do not average know no more than their own model: those models are apart."""

    def apart(loss: float = 0.0) -> float:
        run = PullGossip(Setting(workers=4, learning_rate=0.8, steps=80, loss=loss), problem)
        run.run()
        return float(run.models.std(0).mean())

    together = apart()
    alone = apart(loss=1.0)
    monkeypatch.setattr(rules, "pull", lambda own, other: own)
    assert together < 0.02
    assert apart() > 3 * together
    assert alone > 3 * together  # if each exchange fails, nobody averages either


def _end(problem: Problem, name: str, **arguments: Any) -> Any:
    """The model that counts after ten steps, of which one worker takes twice the time."""
    setting = Setting(workers=4, learning_rate=0.2, steps=10, slow=1)
    run = SYNCHRONIZERS[name](setting, problem, **arguments)
    run.run()
    return run.judged()


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("LocalSGD", {"period": 1}),
        ("DiLoCo", {"period": 1, "learning_rate": 1.0, "momentum": 0.0}),
        ("SSP", {"slack": 0}),
    ],
)
def test_period_1_and_slack_0_are_synchronous_sgd(
    name: str, arguments: dict[str, Any], problem: Problem
) -> None:
    wanted = _end(problem, "AllReduce")
    np.testing.assert_allclose(_end(problem, name, **arguments), wanted, atol=1e-5)
    longer = {key: 4 * value + 3 for key, value in arguments.items() if key in ("period", "slack")}
    assert np.abs(_end(problem, name, **{**arguments, **longer}) - wanted).max() > 1e-4


@pytest.mark.parametrize("name", ["PullGossip", "PushGossip", "SGP", "Decoupled"])
def test_asynchronous_ones_outlive_a_death(name: str, problem: Problem) -> None:
    """A dead worker costs the others no step and no time; synchronous ones stand still."""
    whole, bereft = (_train(name, problem, deaths=deaths) for deaths in ((), (2.0,)))
    assert bereft.final > 0.9
    # The steps that the dead one does not take are taken by the others.
    assert bereft.seconds[-1] < whole.seconds[-1] * 1.5
    synchronous = [_train("AllReduce", problem, deaths=deaths) for deaths in ((), (2.0,))]
    assert synchronous[1].seconds[-1] > synchronous[0].seconds[-1] + 4


@pytest.mark.parametrize("name", ["PullGossip", "PushGossip", "SGP", "GossipPGA"])
def test_gossip_needs_few_of_its_exchanges(name: str, problem: Problem) -> None:
    whole, some, none = (
        _train(name, problem, loss=loss, learning_rate=0.4) for loss in (0.0, 0.5, 1.0)
    )
    assert some.final > 0.9
    # The links are used all the same, and what is heard shows in the models.
    assert some.nbytes[-1] == pytest.approx(whole.nbytes[-1], rel=0.1)
    assert whole.accuracy != some.accuracy != none.accuracy


@pytest.mark.parametrize(("wait", "loss"), [(0.0, 0.0), (10.0, 0.0), (0.0, 0.3), (0.5, 0.3)])
def test_weights_of_push_sum_are_conserved(wait: float, loss: float, problem: Problem) -> None:
    run = SGP(Setting(workers=5, learning_rate=0.4, steps=30, loss=loss), problem, wait=wait)
    run.run()
    on_the_way = sum(message[2] for box in run.inbox for _, message in box)
    assert run.weights.sum() + on_the_way == pytest.approx(5)
    if wait and not loss:  # each turn gives back what it takes
        assert {0.5, 1.0} >= set(run.weights)


def test_one_slow_worker_slows_who_waits(problem: Problem) -> None:
    slowed = {
        name: _train(name, problem, slow=1).seconds[-1] / _train(name, problem).seconds[-1]
        for name in ("AllReduce", "PushGossip")
    }
    assert slowed["AllReduce"] > 1.5
    assert slowed["PushGossip"] < 1.35


@pytest.mark.parametrize("how", ["int8", "fp8", "topk", "powersgd"])
def test_error_feedback_is_conserved(how: str, problem: Problem) -> None:
    """What is sent and what is kept back is what there was."""
    run = AllReduce(Setting(workers=3), problem, compression=how, share=0.1)
    vectors = np.random.default_rng(3).standard_normal((3, problem.parameters)).astype(np.float32)
    total, sent = np.zeros_like(vectors[0]), np.zeros_like(vectors[0])
    for _ in range(5):
        mean, _ = run.compressed(np.arange(3), vectors)
        total, sent = total + vectors.mean(0), sent + mean
    np.testing.assert_allclose(sent + run.compressed.errors.mean(0), total, atol=1e-4)
    assert np.abs(run.compressed.errors).max() < 60  # bounded: it is sent in the end


def test_command(tmp_path: Any) -> None:
    numbers, pictures = tmp_path / "numbers.json", tmp_path / "pictures"
    options = [
        "simulate",
        "--workers",
        "2,3",
        "--seeds",
        "2",
        "--steps",
        "40",
        "--learning-rates",
        "0.8",
    ]
    options += [
        "--loss",
        "0.1",
        "--sync",
        "AllReduce",
        "--sync",
        "LocalSGD(period='quality')",
        "--target",
        "0.8",
    ]
    done = CliRunner().invoke(main, [*options, "--json", str(numbers), "--pictures", str(pictures)])
    assert done.exit_code == 0, done.output
    assert "Simulated" in done.output
    found = json.loads(numbers.read_text())
    assert found["kind"] == "simulated"
    assert found["study"]["setting"]["loss"] == 0.1
    assert [each["workers"] for each in found["outcomes"]] == [2, 2, 3, 3]
    assert all(each["median_seconds"] > 0 for each in found["outcomes"])
    for name in ("accuracy_2.svg", "accuracy_3.svg", "workers.svg"):
        assert "simulated" in (pictures / name).read_text()


def test_pictures_tell_what_did_not_reach_the_target(tmp_path: Any) -> None:
    options = ["--workers", "1,2", "--seeds", "1", "--steps", "3", "--learning-rates", "0.1"]
    ways = ["--sync", "AllReduce", "--sync", "SGP"]
    words = ["simulate", *options, *ways, "--target", "1", "--pictures", str(tmp_path)]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 0, done.output
    drawn = (tmp_path / "workers.svg").read_text()
    assert "AllReduce (not reached)" in drawn and "SGP (not reached)" in drawn
    assert "the target, 100%" in (tmp_path / "accuracy_2.svg").read_text()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--sync", "Gossip"], "names no synchronizer"),
        (["--sync", "LocalSGD(8)", "--sync", "SSP(slack=x)"], "names no synchronizer"),
        (["--sync", "SSP(speed=3)"], "speed"),
        (["--sync", "LocalSGD(period='never')"], "no period 'never'"),
        (["--workers", "0"], "expected numbers"),
        (["--workers", "2", "--slow", "3"], "more slow"),
        (["--bandwidth", "fast"], "bandwidth"),
        (["--death", "soon"], "expected a value such as 2us"),
        (["--loss", "2"], "loss"),
    ],
)
def test_what_cannot_be_is_refused(options: list[str], words: str) -> None:
    done = CliRunner().invoke(main, ["simulate", "--steps", "2", *options])
    assert done.exit_code == 2
    assert words in done.output
