# SPDX-License-Identifier: Apache-2.0
"""What processes of JAX learn when another one is gone, or takes no part."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support import ROOT
from support.ports import free_ports

PROGRAM = ROOT / "tests/on_jax/failures.py"
TIMEOUT_S = 5.0


@pytest.fixture(autouse=True)
def _jax() -> None:
    pytest.importorskip("jax", reason="jax is not installed: pip install --group test")


@contextlib.contextmanager
def processes(*arguments: str) -> Iterator[list[subprocess.Popen[str]]]:
    (port,) = free_ports(1)
    started = []
    try:
        for rank in range(3):
            place = {"RANK": str(rank), "WORLD_SIZE": "3"}
            place |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            command = [sys.executable, str(PROGRAM), *arguments]
            both = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
            started.append(subprocess.Popen(command, env=os.environ | place, **both))  # type: ignore[call-overload]
        yield started
    finally:
        for each in started:
            each.kill()
            each.communicate()


def said(process: subprocess.Popen[str]) -> str:
    text, _ = process.communicate(timeout=110)
    return text


@pytest.mark.parametrize(
    ("way", "cause"),
    [
        ("kill", "member 1 cannot be reached any more"),
        ("raise", "rank 1 ended with ValueError: no more data"),
    ],
)
def test_a_process_ends(way: str, cause: str, tmp_path: Path) -> None:
    """The others fail at once, not after the deadline, and so does what they try afterwards."""
    with processes(way, "60", str(tmp_path)) as started:
        for rank in (0, 2):
            text = said(started[rank])
            failures = re.findall(rf"{rank} failed after ([\d.]+) s: (.*)", text)
            assert len(failures) == 2 and started[rank].returncode == 0, text
            for seconds, why in failures:
                assert cause in why and "MPI_Allreduce" in why and float(seconds) < 30, text


def test_a_process_takes_no_part(tmp_path: Path) -> None:
    with processes("split", str(TIMEOUT_S), str(tmp_path)) as started:
        texts = [said(each) for each in started]
        assert [each.returncode for each in started] == [0, 0, 0], texts
        first, second = re.findall(r"0 failed after ([\d.]+) s: (.*)", texts[0])
        assert float(first[0]) > TIMEOUT_S - 1 and float(second[0]) < TIMEOUT_S, texts
        for _, why in (first, second):
            assert "all of them have to start" in why, texts
            assert "its members are the processes 0, 2" in why, texts
        assert all(f"{rank} goes on" in text for rank, text in enumerate(texts)), texts


def test_use_comes_too_late() -> None:
    code = "import jax, rdmatensor.jax as here; here.use()"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1 and "UsageError: jaxlib was loaded before" in done.stderr, done
    assert "rdmatensor launch --jax" in done.stderr
