# SPDX-License-Identifier: Apache-2.0
"""The programs of examples/ that use PyTorch, as `rdmatensor launch` starts them."""

from __future__ import annotations

import subprocess
import sys

import pytest

from support import ROOT


def test_window() -> None:
    pytest.importorskip(
        "torch.distributed", reason="torch is not installed: pip install --group test"
    )
    program = str(ROOT / "examples" / "torch_window.py")
    command = [sys.executable, "-m", "rdmatensor", "launch", "-n", "3", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the same bits as one process: True" in done.stdout, done.stdout + done.stderr
