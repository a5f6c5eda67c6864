# SPDX-License-Identifier: Apache-2.0
"""Workers that Ray Train starts, one of which is killed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from support import ROOT

EXAMPLE = ROOT / "examples" / "ray_keras.py"
LINE = re.compile(r"rank (\d) of (\d), process (\d+): epoch (\d), loss (\S+)")
# The function that workers run, in a process of its own and without Ray.
ALONE = f"""
import runpy, ray.train
ray.train.report = lambda metrics: None
runpy.run_path({str(EXAMPLE)!r})["train"]({{"backup": None}})
"""
LIMIT_S = 900


@pytest.mark.long
@pytest.mark.timeout(LIMIT_S + 60)
def test_killed_worker(tmp_path: Path) -> None:
    """All are started again, with the last epoch's model, and end where one process alone does.

    Losses are alike, not equal, because processes shuffle other batches.
    """
    pytest.importorskip("ray.train.tensorflow", reason="no Ray: make test SUITE=whole installs it")
    alone = subprocess.run(
        [sys.executable, "-c", ALONE], capture_output=True, text=True, timeout=LIMIT_S, check=True
    )
    wanted = {match[4]: float(match[5]) for match in LINE.finditer(alone.stdout)}
    assert list(wanted) == ["1", "2", "3", "4", "5"]

    settings = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS": "0", "PYTHONUNBUFFERED": "1"}
    found: dict[str, list[tuple[str, float]]] = defaultdict(list)
    processes: dict[str, list[int]] = defaultdict(list)
    log = tmp_path / "log"
    with log.open("w") as errors:
        running = subprocess.Popen(
            ["timeout", str(LIMIT_S), sys.executable, EXAMPLE],
            cwd=tmp_path, env=os.environ | settings, text=True, stdout=subprocess.PIPE, stderr=errors,
        )  # fmt: skip
        assert running.stdout is not None
        for line in running.stdout:
            errors.write(line)
            if not (match := LINE.search(line)):
                continue
            rank, size, process, epoch, loss = match.groups()
            assert size == "2"
            if int(process) not in processes[rank]:
                processes[rank].append(int(process))
            if (epoch, float(loss)) not in found[rank]:
                found[rank].append((epoch, float(loss)))
            if (rank, epoch, len(processes["1"])) == ("1", "2", 1):
                os.kill(int(process), signal.SIGKILL)
        assert running.wait() == 0, log.read_text()[-8000:]
    assert {rank: len(each) for rank, each in processes.items()} == {"0": 2, "1": 2}, processes
    for rank, epochs in found.items():
        assert [epoch for epoch, _ in epochs][-1] == "5", (rank, epochs)
        for epoch, loss in epochs:
            assert loss == pytest.approx(wanted[epoch], rel=0.05), (rank, epochs, wanted)
