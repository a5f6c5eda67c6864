# SPDX-License-Identifier: Apache-2.0
"""A model whose dense layers are cut over processes trains as the whole model does in one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rdmatensor.train.tensor_parallel.slices import bounds
from support import WHOLE
from train.ranks import PATIENCE_S, Ranks, run

pytestmark = pytest.mark.timeout(600)
# The same training by one process, and by several with these layers cut.
FITS: dict[str, dict[str, Any]] = {
    "pair": {"at_once": 2},
    "regularized": {
        "network": "regularized",
        "optimizer": "AdamW(0.01, clipnorm=0.02)",
        "thorough": True,
    },
    "odd": {
        "network": "odd",
        "optimizer": "SGD(0.1, momentum=0.9, global_clipnorm=0.05, use_ema=True, ema_momentum=0.8)",
    },
    "by hand": {
        "network": "odd",
        "optimizer": "Adam(0.01, global_clipnorm=0.1, gradient_accumulation_steps=2)",
    },
    "float16": {"policy": "mixed_float16"},
    "sequence": {"network": "sequence", "eager": True, "epochs": 1},
    "graph": {"network": "graph", "optimizer": "Adam(0.01)", "thorough": True},
}
# On a processor with float16 of its own, oneDNN sums in it, and the sums of half a batch are too far off.
PLAIN_KERNELS = {"TF_ENABLE_ONEDNN_OPTS": "0"}
BY_HAND = {"layers": {"fc1": "row", "fc2": "column"}}
APART = {"optimizer": "SGD(0.1)", "epochs": 1}
# Name, processes, how the model is split, and what is different from the case of one process.
SPLITS: list[tuple[str, int, dict[str, Any], dict[str, Any]]] = [
    ("by hand", 2, BY_HAND, {}),
    ("sequence", 2, {}, {}),
    ("odd", 4, {}, {}),
    ("regularized", 4, {"group_size": 2}, {"checkpoint": "regularized.keras"}),
]
if WHOLE:
    SPLITS += [
        ("float16", 2, {"layers": {"fc1": "column"}}, {}),
        ("graph", 2, {}, {}),
        ("pair", 8, {"group_size": 4}, {}),
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("split")


@pytest.fixture(scope="module")
def done(folder: Path) -> dict[int, list[dict[str, Any]]]:
    """What each process of 1, 2, 4, 8 has after its cases."""
    kept = {**FITS["odd"], "split": {}, "backup": str(folder / "backup")}
    tape = ["split_tape", {}]
    apart = {**APART, "split": {"group_size": 2, "period": 2}}
    calls: dict[int, dict[str, Any]] = {
        1: {"tape": tape} | {name: ["split_fit", FITS[name]] for name, *_ in SPLITS},
        4: {"tape": tape, "apart": ["split_fit", apart]}
        | {"kept": ["split_fit", {**kept, "stop_after": 1}]},
        2: {
            "apart": ["split_fit", {**APART, "sync": "LocalSGD(2)", "pretend": 2}],
            "kept": ["split_fit", kept],
            "dropout": ["split_dropout", {}],
            "memory": ["split_memory", {}],
            "infinity": ["split_infinity", {}],
            "errors": ["split_errors", {}],
        },
        8: {},
    }
    for name, size, split, more in SPLITS:
        fit = {**FITS[name], **more, "split": split}
        if "checkpoint" in fit:
            fit["checkpoint"] = str(folder / fit["checkpoint"])
        calls[size][name] = ["split_fit", fit]
    return {
        size: run("split_cases", size, folder, PLAIN_KERNELS, calls=each)
        for size, each in calls.items()
        if each
    }


def _answers(done: dict[int, list[dict[str, Any]]], size: int, name: str) -> list[Any]:
    return [answer[name] for answer in done[size]]


def _compare(answers: list[Any], expected: Any, tolerance: float = 2e-5) -> None:
    """Losses, metrics and the whole model are those of one process."""
    for rank, answer in enumerate(answers):
        assert answer["strips"]
        np.testing.assert_allclose(answer["losses"], expected["losses"], atol=tolerance)
        if "predicted" in expected:
            np.testing.assert_allclose(answer["evaluated"], expected["evaluated"], atol=tolerance)
            mine = np.reshape(expected["predicted"], (-1, 4))[rank :: len(answers)]
            np.testing.assert_allclose(answer["predicted"], mine.ravel(), atol=10 * tolerance)
    np.testing.assert_allclose(answers[0]["weights"], expected["weights"], atol=tolerance)
    assert answers[0].get("loaded", 0) < 10 * tolerance


@pytest.mark.parametrize(("name", "size"), [each[:2] for each in SPLITS])
def test_equals_one_process(done: dict[int, list[Any]], name: str, size: int) -> None:
    tolerance = 0.01 if name == "float16" else 2e-5
    _compare(_answers(done, size, name), done[1][0][name], tolerance)


def test_checkpoint_of_rank_0_is_the_whole_model(done: dict[int, list[Any]], folder: Path) -> None:
    (weights,) = run("load_without_us", 1, folder, path=str(folder / "regularized.keras"))
    np.testing.assert_allclose(weights, done[1][0]["regularized"]["weights"], atol=2e-5)


def test_each_process_has_its_strip_only(done: dict[int, list[Any]]) -> None:
    for rank, answer in enumerate(_answers(done, 4, "odd")):
        kernels = [
            shape
            for name, shape in answer["strips"].items()
            if "fc2_kernel" in name.replace("/", "_")
        ]
        start, stop = bounds(23, 4, rank)
        assert kernels == [[stop - start, 19]] * 3  # itself, its momentum, its moving average


def test_groups_apart(done: dict[int, list[Any]]) -> None:
    """Groups that train apart are processes that do so, with the examples of the group."""
    answers, expected = _answers(done, 4, "apart"), _answers(done, 2, "apart")
    np.testing.assert_allclose(answers[0]["weights"], expected[0]["weights"], atol=2e-5)
    assert answers[0]["strips"]


def test_resumes_in_other_groups(done: dict[int, list[Any]]) -> None:
    assert _answers(done, 4, "kept") == ["stopped"] * 4
    expected = done[1][0]["odd"]
    for answer in _answers(done, 2, "kept"):
        np.testing.assert_allclose(answer["losses"], expected["losses"][1:], atol=2e-5)
    weights = _answers(done, 2, "kept")[0]["weights"]
    np.testing.assert_allclose(weights, expected["weights"], atol=2e-5)


def test_loop_by_hand(done: dict[int, list[Any]]) -> None:
    for losses in _answers(done, 4, "tape"):
        np.testing.assert_allclose(losses, done[1][0]["tape"], atol=2e-5)


def test_dropout_between_strips(done: dict[int, list[Any]]) -> None:
    first, second = _answers(done, 2, "dropout")
    for answer in (first, second):
        off = np.abs(np.subtract(answer["mean"], answer["plain"]))
        assert (off < 6 * np.array(answer["error"])).all()
        assert min(answer["spread"]) > 0
    assert first["seed"] != second["seed"]


def test_memory_of_whole_layers_is_given_back(done: dict[int, list[Any]]) -> None:
    """No operation carries a whole layer, and free pages of the arena do not stay."""
    for answer in _answers(done, 2, "memory"):
        assert answer["made"] > 80 << 20, "layers lie in the arena"
        assert answer["largest"] <= 4 << 20
        # The memory of operations, and of small free parts, stays.
        assert answer["split"] < answer["own"] + (24 << 20)


def test_infinity_in_one_strip(done: dict[int, list[Any]]) -> None:
    for answer in _answers(done, 2, "infinity"):
        assert answer == {"scale": 2.0**14, "steps": 1, "finite": True}


SAYS = {
    "group": "2 processes cannot form groups of 3",
    "one": "group_size=1) cuts nothing",
    "period": "both are at least 1",
    "small": "no Dense layer with at least 1048576 weights",
    "name": "no Dense layer of this name, but fc1, fc2",
    "mode": "give 'column' or 'row'",
    "narrow": "fc1 cannot be cut by column: its weights are (8, 1), for 2 processes",
    "regularizer": "OrthogonalRegularizer is no sum over weights",
    "unbuilt": "is built: give it an Input",
    "subclass": "no Sequential or functional model",
    "twice": "is split already",
    "stale": "before its optimizer is built",
    "lamb": "Lamb needs whole matrices",
    "sync": "LocalSGD and split()",
    "export": "save() it, load that file",
    "saved": "save the whole model by its own save()",
}


def test_errors(done: dict[int, list[Any]]) -> None:
    for answer in _answers(done, 2, "errors"):
        found = {name: SAYS[name] in text for name, text in answer.items()}
        assert found == dict.fromkeys(SAYS, True), answer


@pytest.mark.parametrize(
    "phase",
    [
        *("forward", "averaging", "alive"),
        *(pytest.param(each, marks=pytest.mark.long) for each in ("backward", "apart")),
    ],
)
def test_killed_process(tmp_path: Path, phase: str) -> None:
    """The others get an error soon, those of another group too.

    In "alive", groups train apart, and no survivor ends before all have an error.
    """
    doomed, died = 3, tmp_path / "died"
    with Ranks("split_kill", 4, tmp_path, phase=phase, doomed=doomed, died=str(died)) as ranks:
        for rank in range(doomed):
            answer = ranks.answer(rank)
            # A survivor that ends first cancels what others wait for. TensorFlow has no class for what
            # Python functions in graphs raise.
            kinds = {"AbortedError", "CancelledError", "UnknownError"}
            assert answer["kind"] in kinds and "member" in answer["says"], answer
            # The time-out is 400 s.
            assert answer["at"] - float(died.read_text()) < 100
        assert ranks.processes[doomed].wait(PATIENCE_S) != 0
