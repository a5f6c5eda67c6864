# SPDX-License-Identifier: Apache-2.0
"""Processes with unequal parts of each batch train what one process does with the whole batches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from support import WHOLE
from train.ranks import run

pytestmark = pytest.mark.timeout(600)
CASES = ["rows", "sum", "mask by weights", "lengths", "outputs", "two optimizers", "uneven tape"]
UNEVEN = ["uneven", "uneven, at once", "uneven, normalized", "uneven, sharded"]
if WHOLE:
    CASES += ["by weights", "ignored class", "number", "batches alone", "tape", "regularized"]
    UNEVEN += [
        "uneven, eager", "uneven, teacher", "uneven, accumulated", "uneven, counted at once", "uneven, ahead",
    ]  # fmt: skip


@pytest.fixture(scope="module")
def weighed(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[dict[str, Any]]]:
    folder = tmp_path_factory.mktemp("weighed")
    return {size: run("weighed", size, folder, names=[*CASES, *UNEVEN]) for size in (1, 2)}


@pytest.mark.parametrize("name", [*CASES, *UNEVEN])
def test_unequal_parts_equal_one_process(weighed: dict[int, list[Any]], name: str) -> None:
    expected = weighed[1][0][name]
    for answer in weighed[2]:
        np.testing.assert_allclose(answer[name]["weights"], expected["weights"], atol=2e-6)
        assert answer[name]["logs"].keys() == expected["logs"].keys()
        for log, values in expected["logs"].items():
            np.testing.assert_allclose(answer[name]["logs"][log], values, rtol=2e-5, err_msg=log)


@pytest.mark.parametrize("name", UNEVEN)
def test_a_process_without_batches_keeps_up(weighed: dict[int, list[Any]], name: str) -> None:
    """Models, what layers have gathered, and steps are those of one process with all batches."""
    expected = weighed[1][0][name]
    for answer in (each[name] for each in weighed[2]):
        assert answer["weights"] == weighed[2][0][name]["weights"]
        np.testing.assert_allclose(answer["state"], expected["state"], atol=2e-6)
        assert answer["steps"] == expected["steps"]


def test_a_fit_that_failed_leaves_nothing_behind(weighed: dict[int, list[Any]]) -> None:
    assert [each["interrupted"] for each in weighed[2]] == [3, 3]


def test_unequal_numbers_of_batches_are_refused(weighed: dict[int, list[Any]]) -> None:
    for counted, uncounted, apart, nothing in (each["refused"] for each in weighed[2]):
        assert "UsageError: processes have 2 to 5 batches" in counted
        assert "rt.callbacks(uneven=True)" in counted
        assert "InvalidArgumentError" in uncounted and "rt.callbacks(uneven=True)" in uncounted
        assert "LocalSGD trains processes apart" in apart
        assert "rank 1 has no batch at all" in nothing


def test_what_is_not_weighed_is_said(weighed: dict[int, list[Any]]) -> None:
    first, second = (each["warned"] for each in weighed[2])
    assert second == []
    assert len(first) == 1 and "trained on 24 to 32 examples, and LocalSGD counts" in first[0]
