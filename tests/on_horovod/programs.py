# SPDX-License-Identifier: Apache-2.0
"""Start programs of this folder as users do, with rdmatensor launch."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from support import ROOT, warm

HERE = ROOT / "tests" / "on_horovod"
PATIENCE_S = 200.0


def launched(
    size: int, program: Path, *arguments: str, options: Sequence[str] = ()
) -> subprocess.CompletedProcess[str]:
    """What the processes printed, and how they ended. `options` are those of the launcher."""
    start = [] if size == 1 else ["-m", "rdmatensor", "launch", "-np", str(size), *options]
    return subprocess.run(
        [warm.python(), *start, str(program), *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def trained(size: int, folder: Path, program: Path, *arguments: str) -> list[Any]:
    """What each process has saved at the end."""
    done = launched(size, program, *arguments)
    assert done.returncode == 0, done.stderr[-4000:]
    return [np.load(folder / f"{size}_{rank}.npz") for rank in range(size)]
