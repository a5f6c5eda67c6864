# SPDX-License-Identifier: Apache-2.0
"""The program of docs/start.md, run as it says, and what it says that it prints."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from plugin.transports import TRANSPORT
from rdmatensor._tools.doctor import framework


def test_doctor_says_what_the_page_promises(root: Path) -> None:
    promised = re.findall(r"```text\n(ok .*?)\n```", (root / "docs/start.md").read_text())[0]
    area, text = re.split("  +", promised)[1:]
    found = framework.finding(thoroughly=True)
    release = f"{text.partition(';')[0].rpartition('.')[0]}."
    assert (found.area, found.state) == (area, "ok")
    if found.text.startswith(release):  # the page speaks of one version of TensorFlow
        assert found.text.partition(";")[2] == text.partition(";")[2]


def test_first_program(root: Path, tmp_path: Path) -> None:
    text = (root / "docs/start.md").read_text()
    program = tmp_path / "first.py"
    program.write_text(re.findall(r"```python\n# first.py\n(.*?)```", text, re.DOTALL)[0])
    done = subprocess.run(
        [sys.executable, "-m", "rdmatensor", "launch", "-n1", "--ps=1", "--no-chief", str(program)],
        # Servers of TensorFlow read the settings too, and tell of those that are none.
        env=os.environ | {"RDMATENSOR_PLANS": "on"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    promised = re.findall(r"prints\n\n```text\n(.*?)```", text, re.DOTALL)[0].splitlines()
    paths = dict(re.findall(r"(static|dynamic): (\d+) tensors", done.stdout))
    # The place is known from the second step on, or a little later on a busy machine.
    assert sum(map(int, paths.values())) == 100 and int(paths["static"]) > 0, done.stdout
    for line in (each.replace("shm", TRANSPORT) for each in promised):
        assert "tensors" in line or line in done.stdout.splitlines(), (line, done.stdout)
    assert "RDMATENSOR_PLANS is not a setting; the nearest is RDMATENSOR_PLAN" in done.stderr
