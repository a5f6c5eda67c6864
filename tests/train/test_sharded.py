# SPDX-License-Identifier: Apache-2.0
"""A sharded optimizer trains as a whole one, with a part of its state."""

from __future__ import annotations

import itertools
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rdmatensor.train.backend.buckets import buckets_of
from rdmatensor.train.sharding.shards import Cut
from support import WHOLE
from support.waits import PATIENCE
from train.ranks import Ranks, run
from train.sharded_cases import FITS, LONG

pytestmark = pytest.mark.timeout(600)
# Norms are sums over strips, and rows are added up in another order.
ROUNDED = {"clipnorm", "global_clipnorm", "decay", "float16", "float16, accumulated", "rows"}
NAMES = [name for name in FITS if WHOLE or name not in LONG]
ELEMENTS = 12 * 17 + 17 + 17 * 4 + 4
# With the zeros at the end of strips, by the number of processes.
OWN = {2: (102 + 9 + 34 + 2), 4: (51 + 5 + 17 + 1), 8: (26 + 3 + 9 + 1)}
SLOTS = {"sgd": 1, "adam": 3, "nadam": 2, "ema": 1, "constraint": 1}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sharded")


@pytest.fixture(scope="module")
def pair(folder: Path) -> list[Any]:
    return run("sharded", 2, folder, names=NAMES)


def _compare(answers: list[Any], name: str) -> None:
    for answer in answers:
        parts, whole = answer[name]["parts"], answer[name]["whole"]
        assert parts["weights"] == answers[0][name]["parts"]["weights"]
        assert parts["steps"] == whole["steps"] > 0
        # Validation sees the weights of the last step.
        np.testing.assert_allclose(parts["validation"], whole["validation"], rtol=1e-6)
        # A sum of two numbers has one order.
        if name in ROUNDED:
            # What float16 rounds away grows with each step.
            atol = 1e-4 if "float16" in name else 2e-6
            np.testing.assert_allclose(parts["weights"], whole["weights"], atol=atol)
        else:
            assert parts["weights"] == whole["weights"]
        if name in SLOTS:
            assert whole["state"] == SLOTS[name] * ELEMENTS
            assert parts["state"] == SLOTS[name] * OWN[2]


@pytest.mark.parametrize("name", NAMES)
def test_equals_all_reduce(pair: list[Any], name: str) -> None:
    _compare(pair, name)


def test_equals_one_process(folder: Path) -> None:
    names = {4: ["ahead", "float16"]}
    if WHOLE:
        names[4].append("accumulate")
        names[8] = ["adam", "global_clipnorm"]
    (alone,) = run("sharded", 1, folder, names=[*itertools.chain(*names.values())], whole=False)
    for size in names:
        answers = run("sharded", size, folder, names=names[size], whole=False)
        for name in names[size]:
            wanted, first = alone[name]["parts"], answers[0][name]["parts"]
            atol = 1e-3 if name == "float16" else 2e-5
            np.testing.assert_allclose(first["weights"], wanted["weights"], atol=atol)
            np.testing.assert_allclose(first["validation"], wanted["validation"], rtol=1e-4)
            for parts in (answer[name]["parts"] for answer in answers):
                assert parts["weights"] == first["weights"]
                assert parts["steps"] == wanted["steps"] > 0
                assert name not in SLOTS or parts["state"] == SLOTS[name] * OWN[size]


def test_infinity_in_one_process(folder: Path) -> None:
    first, second = run("sharded_infinity", 2, folder)
    assert first == second
    assert first[:2] == [2.0**14, 1]
    assert np.isfinite(first[2]).all()


def test_saved_models_are_whole(folder: Path) -> None:
    for answer in run("sharded_saves", 2, folder, kept=str(folder)):
        assert "rt.save(model, path)" in answer.pop("says")
        assert answer.pop("state") == 2 + 2 * OWN[2]
        assert all(answer.values()), answer


def test_resumes_with_another_number_of_processes(folder: Path, tmp_path: Path) -> None:
    whole = run("sharded_resume", 1, folder, backup=str(tmp_path / "whole"), stop_after=None)
    backup = str(tmp_path / "backup")
    assert run("sharded_resume", 2, folder, backup=backup, stop_after=2) == ["killed"] * 2
    for answer in run("sharded_resume", 4, folder, backup=backup, stop_after=None):
        np.testing.assert_allclose(answer, whole[0], atol=2e-5)


def test_refuses_what_is_not_elementwise(folder: Path) -> None:
    (found,) = run("sharded_refusals", 1, folder)
    assert found.pop("Signs") == found.pop("Lion") == ""
    assert {"Lamb", "Muon", "Adafactor"} <= set(found)
    for says in found.values():
        assert "Use rt.sync.AllReduce()" in says


@pytest.mark.parametrize(
    "phase",
    [
        *("reduce", "save"),
        *(
            pytest.param(each, marks=pytest.mark.long)
            for each in ("update", "gather", "ahead", "norms", "backup")
        ),
    ],
)
def test_death_in_each_phase(tmp_path: Path, phase: str) -> None:
    with Ranks("sharded_killed", 2, tmp_path, phase=phase, kept=str(tmp_path)) as ranks:
        answer = ranks.answer(0)
        assert answer["kind"] == "AbortedError", answer
        assert "rank 1" in answer["says"] or "member 1" in answer["says"], answer
        assert ranks.processes[1].wait(PATIENCE) == -signal.SIGKILL
    assert not [*tmp_path.glob("*.keras"), *tmp_path.glob("backup/*.h5")]


def test_buckets_are_in_the_order_of_their_ends() -> None:
    """A bucket that was begun first, and gets its last gradient last, keeps no other one from travelling."""
    small, large = 1000, 1 << 20
    sized = [(4, "f", small), (3, "f", large), (2, "g", small), (1, "f", large), (0, "f", small)]
    assert buckets_of(sized, 10 * small) == [[3], [2], [1], [4, 0]]


@settings(max_examples=60)
@given(st.lists(st.integers(0, 7), max_size=3), st.integers(1, 9), st.integers(1, 9))
def test_strips_become_the_whole_for_any_number_of_processes(
    shape: list[int], size: int, other: int
) -> None:
    """What `size` processes have, joined and cut again, is what `other` processes have."""
    value = np.arange(1.0, 1 + np.prod(shape, dtype=int), dtype="f").reshape(shape)
    for count in (size, other):
        cuts: list[Any] = [
            Cut(shape, cast(Any, SimpleNamespace(rank=rank, size=count))) for rank in range(count)
        ]
        own = [each.own(value).numpy() for each in cuts]
        assert len({each.shape for each in own}) == 1
        np.testing.assert_array_equal(cuts[0].rows(value), own)
        # Zeros at the end add nothing to norms.
        assert sum(np.sum(each**2) for each in own) == pytest.approx(np.sum(value**2))
        again = cuts[0].whole(np.concatenate(own)).numpy()
        np.testing.assert_array_equal(again, value)
        value = again
