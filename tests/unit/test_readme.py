# SPDX-License-Identifier: Apache-2.0
"""The README's example, taken out of it and run as it says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path


def test_two_process_example(root: Path, tmp_path: Path) -> None:
    text = (root / "README.md").read_text()
    blocks = re.findall(r"```python\n# ((?:server|client)\.py)\n(.*?)```", text, re.DOTALL)
    assert [name for name, _ in blocks] == ["server.py", "client.py"]
    for name, source in blocks:
        (tmp_path / name).write_text(source)
    server = subprocess.Popen(
        [sys.executable, "server.py"], cwd=tmp_path, stdout=subprocess.PIPE, text=True
    )
    try:
        assert server.stdout is not None
        address = server.stdout.readline().strip()
        client = subprocess.run(
            [sys.executable, "client.py", address],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert client.returncode == 0, client.stderr
        rest, _ = server.communicate(timeout=60)
    finally:
        server.kill()
    assert server.returncode == 0
    # What the README promises, line for line.
    assert f"`{client.stdout.strip()}`" in text
    assert f"`{rest.strip()}`" in text
