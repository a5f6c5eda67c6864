# SPDX-License-Identifier: Apache-2.0
"""Builds and runs the C and C++ unit programs: one per file, exit status 0 passes, 77 skips.

RDMATENSOR_TEST_SANITIZE=address or thread builds them with sanitizers (make asan, make tsan).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
PROGRAMS = sorted(path.stem for path in HERE.iterdir() if path.suffix in (".c", ".cc"))
# Built where the TensorFlow plugin is: these test parts of it.
OF_THE_PLUGIN = {path.stem for path in HERE.glob("*.cc")}
# Built where the headers of rdma-core are: these test parts of the verbs transport.
OF_VERBS = {path.stem for path in HERE.glob("test_verbs_*.c")}
SANITIZE = os.environ.get("RDMATENSOR_TEST_SANITIZE", "none")
SKIP = 77


def tool(name: str) -> str | None:
    return shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)


@pytest.fixture(scope="session")
def programs(root: Path) -> Path:
    """The folder with the built programs."""
    cmake, ninja = tool("cmake"), tool("ninja")
    if cmake is None:
        pytest.skip("no cmake")
    folder = root / "build" / f"unit-{SANITIZE}"
    generator = ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}"] if ninja else []
    settings = [
        *("-DRDT_BUILD_TESTS=ON", "-DRDT_BUILD_TENSORFLOW=AUTO", f"-DRDT_SANITIZE={SANITIZE}"),
        f"-DPython3_EXECUTABLE={sys.executable}",
    ]
    for command in (
        [cmake, "-S", str(root), "-B", str(folder), *generator, *settings],
        [cmake, "--build", str(folder), "--parallel", "2", "--target", "unit_programs"],
    ):
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr
    return folder / "unit"


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", PROGRAMS)
def test_c_program(programs: Path, name: str) -> None:
    info = json.loads((programs.parent / "build_info.json").read_text())
    if name in OF_THE_PLUGIN and info["no_tensorflow_because"]:
        pytest.skip(f"the TensorFlow plugin is not built: {info['no_tensorflow_because']}")
    if name in OF_VERBS and info["no_verbs_because"]:
        pytest.skip(f"verbs are not built: {info['no_verbs_because']}")
    done = subprocess.run([programs / name], capture_output=True, text=True, timeout=240)
    if done.returncode == SKIP:
        pytest.skip(done.stdout.strip())
    assert done.returncode == 0, f"exit status {done.returncode}\n{done.stdout}\n{done.stderr}"
