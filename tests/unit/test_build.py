# SPDX-License-Identifier: Apache-2.0
"""How the build finds TensorFlow and verbs, and what it says when there is none that it can use."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from support import tools


def fake_tensorflow(site: Path, version: str, name: str = "tensorflow") -> Path:
    """What the build looks at of an installed TensorFlow: headers and the version beside it."""
    (site / "tensorflow" / "include").mkdir(parents=True)
    (site / f"{name}-{version}.dist-info").mkdir()
    return site / "tensorflow"


def find(root: Path, package: Path) -> str:
    done = subprocess.run(
        [sys.executable, root / "csrc/cmake/find_tensorflow.py"],
        env={**os.environ, "RDMATENSOR_TENSORFLOW": str(package)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", ["tensorflow", "tensorflow_cpu"])
def test_version_is_found_without_importing(root: Path, tmp_path: Path, name: str) -> None:
    package = fake_tensorflow(tmp_path, "2.21.1", name)
    (package / "__init__.py").write_text("raise SystemExit('imported')")
    assert find(root, package) == f"2.21.1;{package}"


def test_relatives_are_not_taken_for_it(root: Path, tmp_path: Path) -> None:
    package = fake_tensorflow(tmp_path, "9.9", "tensorflow_datasets")
    assert find(root, package) == ""
    assert find(root, tmp_path / "nothing") == ""


def test_several_are_found_when_named(root: Path, tmp_path: Path) -> None:
    packages = [fake_tensorflow(tmp_path / text, f"2.{text}.0") for text in ("21", "20")]
    both = Path(os.pathsep.join(map(str, packages)))
    assert find(root, both) == f"2.20.0;{packages[1]};2.21.0;{packages[0]}"
    missing = configure(root, tmp_path / "build", Path(f"{both}{os.pathsep}/nowhere"), "AUTO")
    assert missing.returncode != 0
    assert "no TensorFlow in /nowhere" in missing.stderr
    twice = configure(root, tmp_path / "build", Path(f"{both}{os.pathsep}{packages[0]}"), "AUTO")
    assert twice.returncode != 0
    assert "names two TensorFlow 2.21" in twice.stderr


LOOK = """
import setuptools
setuptools.setup = lambda **_: None
names = {"__name__": "setup", "__file__": "setup.py"}
exec(compile(open("setup.py").read(), "setup.py", "exec"), names)
print(names["hidden_tensorflow"]())
"""


def hidden(root: Path, python: Path, *search: Path, **variables: str) -> str:
    """What setup.py finds in an isolated build: a Python that has no TensorFlow, first in PATH."""
    done = subprocess.run(
        [python, "-c", LOOK],
        cwd=root,
        env=os.environ
        | {"PATH": os.pathsep.join(map(str, [python.parent, *search, "/usr/bin", "/bin"]))}
        | variables,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_an_isolated_build_finds_the_tensorflow_that_it_is_for(root: Path, tmp_path: Path) -> None:
    """As `uv pip install .` and `python -m build` isolate: an environment of their own, before the user's."""
    pytest.importorskip("setuptools")
    python = tmp_path / "isolated" / "bin" / "python"
    venv.create(tmp_path / "isolated", with_pip=False)
    site = f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
    own = next(each for each in map(Path, sys.path) if (each / "setuptools").is_dir())
    for name in ("setuptools", "_distutils_hack"):
        (tmp_path / "isolated" / site / name).symlink_to(own / name)
    theirs = tmp_path / "theirs"
    package = fake_tensorflow(theirs / site, "2.21.0")
    sources = tmp_path / "sources"
    sources.mkdir()
    for name in ("setup.py", "CMakeLists.txt", "README.md"):
        shutil.copy(root / name, sources)
    assert hidden(sources, python, theirs / "bin") == "", "no environment of Python's"
    (theirs / "pyvenv.cfg").touch()
    assert hidden(sources, python, theirs / "bin") == str(package)
    assert hidden(sources, python) == ""
    assert hidden(sources, python, theirs / "bin", RDMATENSOR_TENSORFLOW="/x") == "", "told"
    theirs.rename(sources / ".venv")
    assert hidden(sources, python) == str(sources / ".venv" / site / "tensorflow")
    fake_tensorflow(tmp_path / "isolated" / site, "2.20.0")
    assert hidden(sources, python) == "", "the build sees one itself"


def configure(
    root: Path, folder: Path, package: Path, mode: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            *(tools.cmake(), "-S", root, "-B", folder, f"-DRDT_BUILD_TENSORFLOW={mode}"),
            f"-DPython3_EXECUTABLE={sys.executable}",
        ],
        env={**os.environ, "RDMATENSOR_TENSORFLOW": str(package)},
        capture_output=True,
        text=True,
        timeout=100,
    )


def test_other_versions_get_no_plugin_and_a_clear_line(root: Path, tmp_path: Path) -> None:
    package = fake_tensorflow(tmp_path / "site", "2.19.1")
    done = configure(root, tmp_path / "build", package, "AUTO")
    assert done.returncode == 0, done.stderr
    line = next(line for line in done.stdout.splitlines() if "plugin" in line)
    assert "NOT built" in line
    assert "2.19.1" in line
    assert "2.20.x, 2.21.x and 2.22.x" in line
    demanded = configure(root, tmp_path / "build", package, "ON")
    assert demanded.returncode != 0
    assert "2.19.1" in demanded.stderr


def test_without_tensorflow_the_line_tells_how_to_get_the_plugin(
    root: Path, tmp_path: Path
) -> None:
    done = configure(root, tmp_path / "build", tmp_path, "AUTO")
    assert done.returncode == 0, done.stderr
    line = next(line for line in done.stdout.splitlines() if "plugin" in line)
    assert "NOT built" in line
    assert "--no-build-isolation" in line


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        ("#error none", "no infiniband/verbs.h (apt install libibverbs-dev)"),
        ("enum { IBV_QPT_RC = 2 };", "infiniband/verbs.h is older than rdma-core 37"),
        ("enum { IBV_QPT_RC = 2, IBV_FORK_UNNEEDED = 2 };", ""),
    ],
)
def test_verbs_are_built_where_their_headers_are(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, header: str, reason: str
) -> None:
    (tmp_path / "include" / "infiniband").mkdir(parents=True)
    (tmp_path / "include" / "infiniband" / "verbs.h").write_text(header + "\n")
    monkeypatch.setenv("CFLAGS", f"-I{tmp_path / 'include'}")
    done = configure(root, tmp_path / "build", tmp_path, "OFF")
    assert done.returncode == 0, done.stderr
    line = next(line for line in done.stdout.splitlines() if "verbs:" in line)
    assert ("NOT built" in line) == bool(reason)
    assert reason in line
    assert json.loads((tmp_path / "build" / "build_info.json").read_text())["no_verbs_because"] == (
        reason
    )
