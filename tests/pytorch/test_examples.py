# SPDX-License-Identifier: Apache-2.0
"""The examples for torch, with the variables that torchrun and `rdmatensor launch` set."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable

import pytest

from pytorch.ranks import Ranks
from support import ROOT
from support.ports import free_ports

Make = Callable[..., Ranks]
EXAMPLES = ROOT / "examples"


def test_window() -> None:
    pytest.importorskip(
        "torch.distributed", reason="torch is not installed: pip install --group test"
    )
    program = str(EXAMPLES / "torch_window.py")
    command = [sys.executable, "-m", "rdmatensor", "launch", "-n", "3", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the same bits as one process: True" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("name", "last"),
    [
        ("torch_ddp.py", "step 150: loss"),
        ("torch_fsdp.py", "rank 0 has 35841 of 71425 parameters"),
        ("torch_dtensor.py", "from that of one process"),
        ("torch_diloco.py", "all processes have one model now"),
    ],
)
def test_example(ranks: Make, name: str, last: str) -> None:
    (port,) = free_ports(1)
    pair = ranks(2, joins=False)
    pair.run(
        """
        import contextlib, io, runpy
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2")
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            runpy.run_path(program, run_name="__main__")
        """,
        port=port,
        program=str(EXAMPLES / name),
    )
    said, nothing = pair.get("said.getvalue()")
    losses = [float(each) for each in re.findall(r"loss ([\d.]+)", said)]
    assert len(losses) == 4 and losses[-1] < losses[0] and nothing == ""
    assert last in said.splitlines()[-1]
