# SPDX-License-Identifier: Apache-2.0
"""The example in C, which rdmatensor.h shows, does what it says."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

TEXT = "hello from another process"


@pytest.mark.timeout(300)  # the programs are built first
def test_two_processes_greet(programs: Path) -> None:
    with subprocess.Popen([programs / "hello"], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        try:
            address = owner.stdout.readline().strip()
            subprocess.run([programs / "hello", address], check=True, timeout=60)
            rest, _ = owner.communicate(timeout=60)
        finally:
            owner.kill()
    assert rest == f"received: {TEXT}\n"
    assert owner.returncode == 0


def test_the_header_shows_calls_of_the_example(root: Path) -> None:
    """The lines of code in the header's opening comment are the example's."""
    opening = (root / "csrc/include/rdmatensor.h").read_text().split("*/")[0]
    shown = [line[2:].strip() for line in opening.splitlines() if line.startswith(" *     ")]
    example = " ".join((root / "examples/c/hello.c").read_text().split())
    assert len(shown) >= 5
    for line in shown:
        assert line in example
