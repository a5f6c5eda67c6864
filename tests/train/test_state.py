# SPDX-License-Identifier: Apache-2.0
"""What a model has beside its weights is that of one process, or differs on purpose, or is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from train.ranks import run

pytestmark = pytest.mark.timeout(600)


def test_metrics_equal_one_process(tmp_path: Path) -> None:
    ((expected, none),) = run("metrics", 1, tmp_path)
    answers = run("metrics", 2, tmp_path)
    assert none == []
    own = {"largest", "biased", "val_largest", "val_biased"}
    for found, said in answers:
        for kind, logs in expected.items():
            assert sorted(found[kind]) == sorted(logs)
            assert found[kind] == answers[0][0][kind]
            for name in set(logs) - own:
                np.testing.assert_allclose(found[kind][name], logs[name], 1e-4, 1e-6, err_msg=name)
        assert np.shape(found["graph"]["val_f1_score"]) == (2, 3)
        names = [text.split()[2] for text in said]
        assert names == ["largest", "biased"] * 2  # once for each model
    assert {"val_largest", "val_auc", "val_counts"} <= set(expected["graph"])
