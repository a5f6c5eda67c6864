# SPDX-License-Identifier: Apache-2.0
"""evaluate() and predict() over processes: each row once, results in order, as Keras has them alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from train.ranks import run

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    return run("whole", 3, tmp_path_factory.mktemp("whole"))


@pytest.mark.parametrize(
    "name",
    [
        "arrays", "dataset", "batches", "few", "list", "predicted", "predicted dataset",
        "predicted batches", "predicted few", "predicted sparse",
    ],
)  # fmt: skip
def test_all_processes_have_what_keras_has_alone(found: list[Any], name: str) -> None:
    for answers, _ in found:
        ours, expected = answers[name]
        assert ours.keys() == expected.keys()
        for key, value in expected.items():
            tolerance = 1e-2 if key == "b" else 1e-5  # b is bfloat16
            np.testing.assert_allclose(
                ours[key], value, rtol=tolerance, atol=tolerance, err_msg=key
            )


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("generator", "tf.data.Dataset (from_generator)"),
        ("predicted generator", "tf.data.Dataset (from_generator)"),
        ("shuffled", "seed, in ranks [1, 2]"),
        ("other rows", "in ranks [1, 2] than in rank 0"),
        ("steps", "dataset.take(steps)"),
    ],
)
def test_other_data_is_refused(found: list[Any], name: str, words: str) -> None:
    for _, refused in found:
        assert refused[name].startswith("UsageError: ") and words in refused[name], refused[name]
