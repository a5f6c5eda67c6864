# SPDX-License-Identifier: Apache-2.0
"""What a step of planned tensors asks of the operating system: no memory, no device, no RPC."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from plugin.planned import UNPLANNED, sent, warm_up
from plugin.transports import needs_shm
from support.clusters import STEP_S, Cluster
from support.graphs import TASK0, TASK1, session, v1

STEPS = 60
# Elements: in groups, in slots of their own, lent where they lie.
SIZES = [100] * 20 + [3_000] * 10 + [1 << 18] * 10
CALLS = "mmap,munmap,mremap,memfd_create,ftruncate,ioctl,mlock,mlock2,sendmsg"


def _variables(sizes: list[int]) -> Callable[[], Any]:
    def build() -> Any:
        largest = []
        for i, size in enumerate(sizes):
            with tf.device(TASK1):
                variable = v1.get_variable(
                    f"v{i}", [size], initializer=v1.ones_initializer(), use_resource=True
                )
                read = variable.read_value()
            with tf.device(TASK0):
                largest.append(tf.reduce_max(read))
        with tf.device(TASK0):
            return tf.add_n(largest)

    return build


def _is_traced(pid: int) -> bool:
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):  # it has ended
            if "TracerPid:\t0\n" in (thread / "status").read_text():
                return False
    return True


class Trace:
    """The system calls of processes, counted by strace."""

    def __init__(self, pids: list[int], output: Path) -> None:
        strace = shutil.which("strace")
        if strace is None:
            pytest.skip("no strace")
        self._output = output
        options = ["-f", "-qq", "-e", f"trace={CALLS}", "-o", str(output)]
        targets = [f"--attach={pid}" for pid in pids]
        self._process = subprocess.Popen(
            [strace, *options, *targets], stderr=subprocess.PIPE, text=True
        )
        end = time.monotonic() + STEP_S
        while not all(_is_traced(pid) for pid in pids):
            if self._process.poll() is not None or time.monotonic() > end:
                self.stop()
                assert self._process.stderr is not None
                pytest.skip(f"strace cannot trace here: {self._process.stderr.read().strip()}")
            time.sleep(0.05)

    def stop(self) -> Counter[str]:
        """Ends it; the calls by name."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            self._process.wait(STEP_S)
        text = self._output.read_text() if self._output.exists() else ""
        return Counter(re.findall(r"^\d+ +(\w+)\(", text, re.MULTILINE))


def _calls(cluster: Cluster, sizes: list[int], output: Path) -> Counter[str]:
    """Of both tasks during `STEPS` steps."""
    pids = [task.ask("pid") for task in cluster.tasks]
    with session(cluster, _variables(sizes)) as opened:
        warm_up(cluster, lambda: opened.run(opened.built))
        for _ in range(20):
            opened.run(opened.built)
        cluster.reset_stats()
        trace = Trace(pids, output)
        try:
            for _ in range(STEPS):
                assert opened.run(opened.built) == len(sizes)
        finally:
            counted = trace.stop()
        assert sent(cluster, "static") == STEPS * len(sizes)
        assert sent(cluster, *UNPLANNED) == 0
    return counted


@needs_shm  # tcp asks for what it does
def test_steps_ask_for_nothing(cluster: Cluster, tmp_path: Path) -> None:
    one = _calls(cluster, SIZES[-1:], tmp_path / "one")
    many = _calls(cluster, SIZES, tmp_path / "many")
    assert one["sendmsg"] >= STEPS, "strace missed TensorFlow's own messages"
    for call in ("memfd_create", "ftruncate", "ioctl", "mlock", "mlock2"):
        assert many[call] == 0, many
    # TensorFlow itself, and the C library, map something now and then.
    for call in ("mmap", "munmap", "mremap"):
        assert many[call] - one[call] < STEPS / 4, (one, many)
    # A step's tensors cost no RPC: that would be two messages for each.
    assert many["sendmsg"] - one["sendmsg"] < STEPS * len(SIZES) / 10, (one, many)
