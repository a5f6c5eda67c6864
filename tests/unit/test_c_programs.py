# SPDX-License-Identifier: Apache-2.0
"""Builds and runs the C and C++ unit programs: one per file, exit status 0 passes, 77 skips.

RDMATENSOR_TEST_SANITIZE=address or thread builds them with sanitizers (make sanitize).
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
PROGRAMS = sorted(path.stem for path in HERE.iterdir() if path.suffix in (".c", ".cc"))
# Built where the TensorFlow plugin is: these test parts of it.
OF_THE_PLUGIN = {path.stem for path in HERE.glob("*.cc")}
# Built where the headers of rdma-core are: these test parts of the verbs transport.
OF_VERBS = {path.stem for path in HERE.glob("test_verbs_*.c")}
SKIP = 77
# A sanitizer makes a program several times as slow: the longest one takes over two minutes of a processor.
SECONDS = 900 if os.environ.get("RDMATENSOR_TEST_SANITIZE") else 240


@pytest.mark.timeout(SECONDS + 300)  # the programs are built first
@pytest.mark.parametrize("name", PROGRAMS)
def test_c_program(programs: Path, name: str) -> None:
    info = json.loads((programs.parent / "build_info.json").read_text())
    if name in OF_THE_PLUGIN and info["no_tensorflow_because"]:
        pytest.skip(f"the TensorFlow plugin is not built: {info['no_tensorflow_because']}")
    if name in OF_VERBS and info["no_verbs_because"]:
        pytest.skip(f"verbs are not built: {info['no_verbs_because']}")
    done = subprocess.run([programs / name], capture_output=True, text=True, timeout=SECONDS)
    if done.returncode == SKIP:
        pytest.skip(done.stdout.strip())
    assert done.returncode == 0, f"exit status {done.returncode}\n{done.stdout}\n{done.stderr}"
