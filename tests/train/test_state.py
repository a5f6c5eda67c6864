# SPDX-License-Identifier: Apache-2.0
"""What a model has beside its weights is that of one process, or differs on purpose, or is refused."""

from __future__ import annotations

import shutil
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


def test_streams_differ_and_resume(tmp_path: Path) -> None:
    first, second = run("streams", 2, tmp_path, backup=str(tmp_path))
    for one, other in zip(first["broadcast"], second["broadcast"], strict=True):
        assert one != other  # dropout's, and that of a name of its own
    assert first["mask"] != second["mask"]
    for answer in (first, second):
        assert len(answer["broadcast"]) == 2
        assert answer["again"] == answer["broadcast"]
        assert answer["resumed"]["seeds"] == answer["whole"]["seeds"]
        assert answer["resumed"]["weights"] == answer["whole"]["weights"]  # to the bit
        assert answer["resumed"]["loss"] == answer["whole"]["loss"][2:]
    assert first["whole"]["weights"] == second["whole"]["weights"]
    copies = [tmp_path / "one", tmp_path / "two"]
    for each in copies:
        shutil.copytree(tmp_path / "parts", each)
    one, two = (run("streams", 1, tmp_path, backup="", kept=str(each))[0] for each in copies)
    assert one == two  # another number of processes: other streams, and the same again
