# SPDX-License-Identifier: Apache-2.0
"""The short form of `make fuzz`: every corpus again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fuzz import corpus, run

HERE = Path(__file__).resolve().parent


def expected(built: Path) -> set[str]:
    """The harnesses that have a source, without those that this machine lacks the headers for."""
    info = json.loads((built / "build_info.json").read_text())
    sources = [*HERE.glob("fuzz_*.c"), *HERE.glob("fuzz_*.cc")]
    assert sources
    return {
        path.stem.removeprefix("fuzz_")
        for path in sources
        if not (path.stem == "fuzz_verbs" and info["no_verbs_because"])
        and not (path.suffix == ".cc" and info["no_tensorflow_because"])
    }


@pytest.mark.timeout(420)
def test_what_comes_from_outside_breaks_nothing(root: Path) -> None:
    folder = root / "build" / "fuzz" / "replay"
    results, guided = run.run_all(0, 1, [], folder)
    missing = expected(folder / ("clang" if guided else "gcc")) - {one.harness for one in results}
    assert not missing, "these harnesses are not built, or not run"
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
