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


def test_group_example(root: Path, tmp_path: Path) -> None:
    """That of docs/groups.md, and what it says that it prints."""
    text = (root / "docs/groups.md").read_text()
    program = tmp_path / "member.py"
    program.write_text(re.findall(r"```python\n(.*?)```", text, re.DOTALL)[0])

    def member(*arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, str(program), *arguments]
        return subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True)

    with member("0", "2") as first:
        assert first.stdout is not None
        try:
            with member("1", "2", first.stdout.readline().strip()) as second:
                said = [each.communicate(timeout=60)[0].strip() for each in (first, second)]
        finally:
            first.kill()
    assert [first.returncode, second.returncode] == [0, 0]
    assert all(f"`{line}`" in text for line in said) and all(said)
