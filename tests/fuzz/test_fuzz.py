# SPDX-License-Identifier: Apache-2.0
"""The short form of `make fuzz`: every corpus again, and a second of fuzzing on each."""

from __future__ import annotations

from pathlib import Path

import pytest

from fuzz import corpus, run


@pytest.mark.timeout(420)
def test_what_comes_from_outside_breaks_nothing(root: Path) -> None:
    results, _ = run.run_all(1, 1, [], root / "build" / "fuzz")
    names = {each.harness for each in results}
    assert {"wire", "device", "ring", "group", "meeting", "plan", "config"} <= names
    for each in results:
        assert not each.failed, each.output
        assert each.executed >= len(corpus.read(each.harness)) > 0


def test_inputs_make_one_archive_and_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = [b"two", b"", bytes(5000)]
    monkeypatch.setattr(corpus, "FOLDER", tmp_path)
    corpus.write("made_up", inputs)
    first = corpus.archive("made_up").read_bytes()
    unpacked = corpus.unpack("made_up", tmp_path / "unpacked")
    assert sorted(path.read_bytes() for path in unpacked.iterdir()) == sorted(inputs)
    corpus.write("made_up", reversed(inputs))
    assert corpus.archive("made_up").read_bytes() == first
    assert corpus.read("unheard_of") == set()
