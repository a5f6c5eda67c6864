# SPDX-License-Identifier: Apache-2.0
"""The repair of Keras 3's fit under MultiWorkerMirroredStrategy."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from support import warm

PROGRAM = Path(__file__).with_name("keras_fit.py")


@pytest.mark.timeout(300)
def test_fit_gives_what_it_gives_over_grpc() -> None:
    launch = [warm.python(), "-m", "rdmatensor", "launch", "-n", "2", "--protocol"]
    both = [
        subprocess.Popen(
            [*launch, protocol, str(PROGRAM)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for protocol in ("grpc", "grpc+rdma")
    ]
    lines = []
    for process in both:
        out, errors = process.communicate(timeout=250)
        assert process.returncode == 0, errors[-4000:]
        lines.append(sorted(out.splitlines()))
    assert lines[0] == lines[1]
    first = [line.removeprefix("[worker 0] ") for line in lines[0] if "worker 0" in line]
    second = [line.removeprefix("[worker 1] ") for line in lines[0] if "worker 1" in line]
    assert first == second
    assert [line.split()[0] for line in first] == ["evaluate", "loss", "mae", "val_loss", "val_mae"]
    losses = [float.fromhex(text) for text in first[1].split()[1:]]
    assert losses[1] < losses[0]
