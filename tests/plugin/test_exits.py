# SPDX-License-Identifier: Apache-2.0
"""A task ends while tensors come and go: in time, with its own exit code, and it leaves nothing behind."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support import WHOLE
from support.clusters import START_S, Cluster
from support.waits import until

# How it ends, and its exit code.
ENDS = {"return": 0, "_exit": 3}
if WHOLE:
    ENDS |= {"raise": 1, "signal": -signal.SIGTERM}
END_S = 20.0
# Before 3.14, CPython unwinds a thread that comes back from TensorFlow while the process ends. The C++ on its
# stack may answer with an abort, in TensorFlow without this package too.
UNWOUND = "FATAL: exception not rethrown"


def _maps(pid: int) -> int:
    """Mappings of memory that processes share."""
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return sum("/memfd:rdmatensor" in line for line in lines)


def _descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def _start(cluster: Cluster, index: int, how: str, log: Path) -> subprocess.Popen[bytes]:
    # Not a warm Python: those end in a way of their own.
    with log.open("wb") as errors:
        return subprocess.Popen(
            [
                sys.executable,
                Path(__file__).with_name("exiting.py"),
                json.dumps(cluster.spec),
                str(index),
                how,
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "1"},
        )


def test_tasks_end_while_tensors_are_under_way(tmp_path: Path) -> None:
    cluster = Cluster(["grpc+rdma"], tmp_path, {}, vacant=len(ENDS))
    (survivor,) = cluster.tasks
    pid = survivor.ask("pid")
    maps, descriptors = _maps(pid), _descriptors(pid)
    logs = {how: tmp_path / f"{how}.log" for how in ENDS}
    processes = {
        how: _start(cluster, 1 + number, how, logs[how]) for number, how in enumerate(ENDS)
    }
    try:
        for how, process in processes.items():
            assert process.stdout is not None
            ready, _, _ = select.select([process.stdout], [], [], 2 * START_S)
            assert ready and process.stdout.readline(), logs[how].read_text()[-4000:]
        assert _maps(pid) > maps
        for how, process in processes.items():
            assert process.stdin is not None
            process.stdin.write(b"end\n")
            process.stdin.flush()
            if how == "signal":
                process.terminate()
        for how, process in processes.items():
            try:
                status = process.wait(END_S)
            except subprocess.TimeoutExpired:
                pytest.fail(f"{how}: still running after {END_S:.0f} s")
            said = logs[how].read_text()
            unwound = status == -signal.SIGABRT and UNWOUND in said
            assert status == ENDS[how] or unwound, said[-4000:]
            assert "Check failed" not in said
        until("the survivor keeps memory of those that ended", lambda: _maps(pid) <= maps)
        # Connections of gRPC may stay as long as TensorFlow tries them.
        until(
            "the survivor keeps descriptors of those that ended",
            lambda: _descriptors(pid) <= descriptors + 4 * len(ENDS),
        )
        assert survivor.ask("pid") == pid
        assert not [path for path in Path("/dev/shm").iterdir() if "rdma" in path.name]
    finally:
        for process in processes.values():
            process.kill()
            process.wait(END_S)
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()
        cluster.close()
