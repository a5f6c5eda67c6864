# SPDX-License-Identifier: Apache-2.0
"""Backups outlive the host: the disk has the new ones before the old ones go."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rdmatensor.train.keras import backup
from rdmatensor.train.keras.backup import Backup, write

RUN: Any = SimpleNamespace(rank=0, size=1, closing=[])


def _name(descriptor: int) -> Path:
    return Path(f"/proc/self/fd/{descriptor}").readlink()


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """What is done to files: each call, and the name of what it is done to."""
    found: list[tuple[str, str]] = []
    fsync, replace, unlink = os.fsync, os.replace, os.unlink

    def record(what: str, file: Path) -> bool:
        found.append((what, file.name))
        return True

    monkeypatch.setattr(os, "fsync", lambda fd: record("fsync", _name(fd)) and fsync(fd))
    monkeypatch.setattr(os, "replace", lambda a, b: record("replace", Path(b)) and replace(a, b))
    monkeypatch.setattr(os, "unlink", lambda a: record("unlink", Path(a)) and unlink(a))
    return found


def test_old_weights_go_last(tmp_path: Path, calls: list[tuple[str, str]]) -> None:
    model = SimpleNamespace(
        variables=[], optimizer=None, save_weights=lambda file: Path(file).write_bytes(b"weights")
    )
    backup = Backup(tmp_path / "kept", RUN, model, [])
    for epoch in (1, 2):
        calls.clear()
        backup.save_own()
        backup.save(epoch)
    assert calls == [
        ("fsync", "kept_2.weights.h5"),
        ("fsync", "state.json.new"),
        ("fsync", "kept"),
        ("replace", "state.json"),
        ("fsync", "kept"),
        ("unlink", "kept_1.weights.h5"),
    ]
    assert sorted(each.name for each in (tmp_path / "kept").iterdir()) == [
        "kept_2.weights.h5",
        "state.json",
    ]


def test_what_a_process_keeps_for_itself(tmp_path: Path, calls: list[tuple[str, str]]) -> None:
    file = tmp_path / "rank_0.kept_1.npz"
    write(file, {"variable 0": np.zeros(3, "f")})
    assert calls == [
        ("fsync", f"{file.name}.new"),
        ("fsync", tmp_path.name),
        ("replace", file.name),
        ("fsync", tmp_path.name),
    ]


def test_file_systems_that_cannot_sync_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(descriptor: int) -> None:
        raise OSError(errno.EINVAL, "no")

    file = tmp_path / "file"
    file.touch()
    monkeypatch.setattr(os, "fsync", refuse)
    backup.sync(tmp_path)
    with pytest.raises(OSError, match="no"):
        backup.sync(file)
