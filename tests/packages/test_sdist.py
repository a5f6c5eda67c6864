# SPDX-License-Identifier: Apache-2.0
"""The source archive: everything that is tracked, so that whoever has it can build, test and read."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support import tools

# What serves the repository alone.
LEFT_OUT = {".gitignore", ".pre-commit-config.yaml"}
# What the archive has besides.
MADE = {"PKG-INFO", "setup.cfg"}
BUILD = "import setuptools.build_meta as b, sys; b.build_sdist(sys.argv[1])"


def tracked(root: Path) -> set[str]:
    """The files of the sources that git tracks, or would."""
    command = [
        "git",
        "-C",
        str(root),
        "ls-files",
        "-z",
        "--cached",
        "--others",
        "--exclude-standard",
    ]
    if shutil.which("git") is None:
        pytest.skip("no git")
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    if done.returncode != 0:
        pytest.skip(f"not a clone: {done.stderr.strip()}")
    return {name for name in done.stdout.split("\0") if name and (root / name).is_file()}


@pytest.fixture(scope="module")
def archive(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made of a copy of the sources that git knows nothing about, and unpacked."""
    place = tmp_path_factory.mktemp("sdist")
    for name in tracked(root):
        target = place / "sources" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(root / name, target)
    done = subprocess.run(
        [sys.executable, "-c", BUILD, place],
        cwd=place / "sources",
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    (packed,) = place.glob("*.tar.gz")
    shutil.unpack_archive(packed, place / "unpacked")
    (unpacked,) = (place / "unpacked").iterdir()
    return unpacked


def test_archive_has_what_is_tracked_and_nothing_else(root: Path, archive: Path) -> None:
    there = {str(path.relative_to(archive)) for path in archive.rglob("*") if path.is_file()}
    there = {name for name in there if not name.startswith("rdmatensor.egg-info/")}
    wanted = {name for name in tracked(root) if not name.startswith(".github/")} - LEFT_OUT
    assert wanted - there == set()
    assert there - wanted - MADE == set()


def test_archive_configures(archive: Path, tmp_path: Path) -> None:
    """With all that is not built by default; `make dist` builds the wheel of it."""
    done = subprocess.run(
        [
            *(
                tools.cmake(),
                "-S",
                archive,
                "-B",
                tmp_path,
                f"-DPython3_EXECUTABLE={sys.executable}",
            ),
            *("-DRDT_BUILD_TENSORFLOW=OFF", "-DRDT_BUILD_TESTS=ON", "-DRDT_BUILD_FUZZERS=ON"),
            "-DRDT_BUILD_BENCH=ON",
        ],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    # Warnings of compilers that are not ours must not keep anybody from building a release.
    assert "RDT_WERROR:BOOL=OFF" in (tmp_path / "CMakeCache.txt").read_text()
