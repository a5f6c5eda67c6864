# SPDX-License-Identifier: Apache-2.0
"""Two builds of the same sources are the same bytes, so that anybody can check what was published."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from support import tools

BUILD = "import setuptools.build_meta as b, sys; b.build_wheel(sys.argv[1])"
SOURCES = ["CMakeLists.txt", "LICENSE", "README.md", "pyproject.toml", "setup.py"]
FOLDERS = ["csrc", "graph_analyzer", "rdmatensor"]
SECONDS = 400


def build(root: Path, place: Path) -> Path:
    """The wheel of a copy of the sources, without TensorFlow's plugin, which takes minutes."""
    sources = place / "sources"
    sources.mkdir(parents=True)
    for name in SOURCES:
        shutil.copy(root / name, sources)
    for name in FOLDERS:
        ignored = shutil.ignore_patterns("__pycache__", "*.so")
        shutil.copytree(root / name, sources / name, ignore=ignored, copy_function=shutil.copy)
    done = subprocess.run(
        [sys.executable, "-c", BUILD, place],
        cwd=sources,
        env=os.environ | {"SOURCE_DATE_EPOCH": "1700000000", "RDMATENSOR_BUILD_TENSORFLOW": "OFF"},
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    (wheel,) = place.glob("*.whl")
    return wheel


def contents(wheel: Path) -> dict[str, tuple[object, ...]]:
    """Of each file what it is, to tell which of them differs."""
    with zipfile.ZipFile(wheel) as archive:
        return {
            each.filename: (
                hashlib.sha256(archive.read(each)).hexdigest(),
                each.date_time,
                each.external_attr,
            )
            for each in archive.infolist()
        }


@pytest.mark.timeout(2 * SECONDS)
def test_two_builds_are_equal(root: Path, tmp_path: Path) -> None:
    """In folders with names of different length, as two machines' would be."""
    pytest.importorskip("setuptools", minversion="77")
    tools.cmake()
    first, second = build(root, tmp_path / "a"), build(root, tmp_path / "another-folder")
    assert contents(first) == contents(second)
    assert first.read_bytes() == second.read_bytes()
