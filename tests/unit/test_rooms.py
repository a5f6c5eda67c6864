# SPDX-License-Identifier: Apache-2.0
""".ci/rooms.py: a forbidden arrow, a circle or a file without a room makes `make lint` fail."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TABLE = """
ignored = ["csrc/tools/*"]
[rooms]
base = { files = ["csrc/base"], uses = [], does = "Things" }
core = { files = ["csrc/core"], uses = ["base"], does = "Things" }
top = { files = ["csrc/top"], uses = ["core"], does = "Things" }
plugin = { files = ["csrc/tensorflow/peer"], uses = [], does = "Things" }
api = { files = ["rdmatensor", "rdmatensor/_api"], uses = [], does = "Things" }
demo = { files = ["rdmatensor/demo"], uses = ["api"], does = "Things" }
"""
PAGE = """# Architecture
<!-- rooms: made by .ci/rooms.py --write -->
<!-- end of rooms -->
"""
C = "/* SPDX\n *\n * Does one thing.\n */\n"
PY = '"""Does one thing."""\n'
FILES = {
    "docs/rooms.toml": TABLE,
    "docs/architecture.md": PAGE,
    "csrc/tools/odd.c": '#include "top/top.h"\n',
    "csrc/base/base.h": C,
    "csrc/base/base.c": C + '#include "base/base.h"\n#include <stdio.h>\n',
    "csrc/core/core.h": C + '#include "base/base.h"\n',
    "csrc/top/top.h": C + '#include "base/base.h"\n#include "core/core.h"\n',
    "csrc/tensorflow/peer/peer.h": C,
    "csrc/tensorflow/peer/link.cc": C + '#include "peer/peer.h"\n',
    "rdmatensor/__init__.py": PY + "from .device import Device\n",
    "rdmatensor/device.py": PY + "class Device: ...\n",
    "rdmatensor/demo/__init__.py": PY,
    "rdmatensor/demo/run.py": PY + "from rdmatensor import device\n",
    "graph_analyzer/py.typed": "",
}


@pytest.fixture
def tree(root: Path, tmp_path: Path) -> Path:
    for name, text in FILES.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    assert rooms(root, tmp_path, "--write") == ""
    return tmp_path


def rooms(root: Path, folder: Path, *words: str) -> str:
    """What is found wrong. The exit status has to agree."""
    command = [sys.executable, str(root / ".ci/rooms.py"), *words, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert not done.stderr
    assert done.returncode == bool(done.stdout)
    return done.stdout


def test_these_sources(root: Path) -> None:
    assert rooms(root, root) == ""


def test_allowed_arrows(root: Path, tree: Path) -> None:
    assert rooms(root, tree) == ""
    page = (tree / "docs/architecture.md").read_text()
    assert "| api | Things | `rdmatensor`, `rdmatensor/_api` |  |" in page
    assert "| top | Things | `csrc/top` | core |" in page


@pytest.mark.parametrize(
    ("file", "line", "fault"),
    [
        ("csrc/base/base.c", '#include "core/core.h"', "csrc/base/base.c:7: base may not use core"),
        ("csrc/base/base.h", '#include "top/top.h"', "csrc/base/base.h:5: base may not use top"),
        ("csrc/tensorflow/peer/peer.h", '#include "peer/link.cc"', "a circle of 2 files"),
        (
            "rdmatensor/device.py",
            "import rdmatensor.demo",
            "rdmatensor/device.py:3: api may not use demo",
        ),
        (
            "rdmatensor/device.py",
            "def late() -> None:\n    from .demo import run",
            "rdmatensor/device.py:4: api may not use demo (rdmatensor/demo/run.py)",
        ),
        ("rdmatensor/device.py", "from . import Device", "a circle of 2 files"),
        ("csrc/new/new.c", C, "csrc/new/new.c: no room of docs/rooms.toml has this file"),
        ("csrc/base/more.c", "int more;", "csrc/base/more: its first sentence should say"),
        ("csrc/base/more.c", "/* SPDX */\n", "csrc/base/more: its first sentence should say"),
        ("rdmatensor/more.py", "MORE = 1", "rdmatensor/more.py: its first sentence should say"),
        (
            "docs/rooms.toml",
            'new = { files = ["csrc/new"], uses = [], does = "More" }',
            "docs/architecture.md is outdated",
        ),
    ],
)
def test_what_is_forbidden_is_named(
    root: Path, tree: Path, file: str, line: str, fault: str
) -> None:
    path = tree / file
    path.parent.mkdir(exist_ok=True)
    with path.open("a") as text:
        text.write(line + "\n")
    assert fault in rooms(root, tree)


def test_a_circle_of_rooms_is_refused(root: Path, tree: Path) -> None:
    table = tree / "docs/rooms.toml"
    table.write_text(
        TABLE.replace('files = ["csrc/base"], uses = []', 'files = ["csrc/base"], uses = ["top"]')
    )
    command = [sys.executable, str(root / ".ci/rooms.py"), str(tree)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode and "docs/rooms.toml: a circle" in done.stderr
