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


DIFFER = {
    "mean": ("normalization", "adapted mean is float32[6]", "adapt it to the same data"),
    "given": ("normalization", "mean is float32[1, 6] [[0. 0.", "from the same values"),
    "bins": ("discretization", "bin_boundaries is float", "adapt it to the same data"),
    "rate": ("dropout", "rate is 0.25 at rank 0, and 0.5 at rank 1", "from the same values"),
    "constant": ("scaled", "scale is float32[1] [1.] at rank 0", ""),
    "list": ("scaled", "scale is float64[6]", ""),
    "closure": ("lambda", "closure is float64[1] [0.] at rank 0", ""),
    "nested": ("dropout", "rate is 0.1 at rank 0, and 0.2 at rank 1", ""),
    "between": ("functional", "Multiply is float64[1] [1.] at rank 0", ""),
    "strings": ("string_lookup", "lookup_table is 3 rows", "adapt it to the same data"),
    "text": ("string_lookup", "lookup_table is 3 rows", "adapt it to the same data"),
    "broadcast": ("dropout", "rate is 0.25 at rank 0, and 0.5 at rank 1", ""),
}


def test_layers_that_differ_are_refused(tmp_path: Path) -> None:
    first, second = run("states", 2, tmp_path)
    for name, (layer, what, remedy) in DIFFER.items():
        for answer in (first, second):  # each process learns it, with its own name of the layer
            assert f"the layer {layer}" in answer[name] and what in answer[name], answer[name]
            assert remedy in answer[name]
    assert first["flag"] == second["flag"] == [True, False]
    for name in ("same", "first", "seeds", "user"):
        assert isinstance(first[name], list), first[name]
        np.testing.assert_array_equal(first[name], second[name])


def test_batch_normalization_over_all_processes(tmp_path: Path) -> None:
    (expected,) = run("normalized", 1, tmp_path)
    answers = run("normalized", 2, tmp_path)
    for found in answers:
        for name in ("eager", "masked", "moments", "fit False", "fit True"):
            for one, other in zip(found[name], expected[name], strict=True):
                np.testing.assert_allclose(one, other, rtol=2e-4, atol=2e-5, err_msg=name)
            assert found[name] == answers[0][name]
        assert "pass jit_compile=False" in found["errors"][0]
        assert "synchronized=True" in found["errors"][1], found["errors"]
    np.testing.assert_allclose(answers[0]["rows"], expected["rows"], rtol=2e-3, atol=2e-3)
