# SPDX-License-Identifier: Apache-2.0
"""Clusters of TensorFlow servers in separate processes. Every wait here has a deadline."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest

from support import warm
from support.nursery import stands_still
from support.ports import free_ports
from support.waits import until

START_S = 60.0
ANSWER_S = 20.0
STEP_S = 30.0

# For tests of how tensors arrive: without a plan, used in the sender's memory or read from there; and
# planned, lent or read where they are large.
EVERY_WAY = pytest.mark.parametrize(
    "cluster",
    ["dynamic_cluster", "reading_cluster", "shared_cluster", "planned_reading_cluster"],
    ids=["in_place", "read", "planned", "planned_read"],
    indirect=True,
)

T = TypeVar("T")


# What counts when TensorFlow is imported.
AT_IMPORT = (
    "LD_PRELOAD",
    "RDMATENSOR_DISABLE",
    "TF_CPP_MIN_LOG_LEVEL",
    "TF_CPP_VMODULE",
    "TF_ENABLE_ONEDNN_OPTS",
)


class Task:
    """One process that runs support.server."""

    _pid: int | None = None  # of the server itself, where a warm Python's client stands before it

    def __init__(
        self,
        cluster: dict[str, list[str]],
        job: str,
        index: int,
        protocol: str,
        log: Path,
        environment: dict[str, str] | None = None,
    ) -> None:
        self.log = log
        given = environment or {}
        python = warm.python(**{name: given[name] for name in given if name in AT_IMPORT})
        # Files and pipes rather than shared ones: a killed task must not leave a reader waiting.
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [python, "-m", "support.server", json.dumps(cluster), job, str(index), protocol],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "1"} | given,
            )
        self._partial = b""
        self.target = ""

    def wait_until_ready(self) -> None:
        """Until the server runs."""
        answer = self._read(START_S)
        self.target, self._pid = answer["target"], answer["pid"]

    def ask(self, command: str) -> Any:
        """The answer to a command of server.py."""
        assert self._process.stdin is not None
        self._process.stdin.write(command.encode() + b"\n")
        self._process.stdin.flush()
        return self._read(ANSWER_S)

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """It does nothing meanwhile, but its connections stay open."""
        self._signal(signal.SIGSTOP)
        try:
            until("it does not stop", lambda: stands_still(self._pid or self._process.pid))
            yield
        finally:
            self._signal(signal.SIGCONT)

    def kill(self) -> None:
        """End it as a crash would."""
        self._signal(signal.SIGKILL)
        self._process.wait(ANSWER_S)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def _signal(self, number: int) -> None:
        if self._pid is None:
            self._process.send_signal(number)
        elif self._process.poll() is None:
            os.kill(self._pid, number)

    def _read(self, timeout_s: float) -> Any:
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        end = time.monotonic() + timeout_s
        while b"\n" not in self._partial:
            ready, _, _ = select.select([descriptor], [], [], max(0.0, end - time.monotonic()))
            read = os.read(descriptor, 1 << 16) if ready else b""
            if not read:
                what = "ended" if ready else f"gave no answer in {timeout_s:.0f} s"
                raise RuntimeError(f"the server {what}:\n{self.log.read_text()[-4000:]}")
            self._partial += read
        line, self._partial = self._partial.split(b"\n", 1)
        return json.loads(line)


class Cluster:
    """Workers 0, 1, ... in one job, each with its protocol, and some with an environment."""

    def __init__(
        self,
        protocols: Sequence[str],
        folder: Path,
        environments: dict[int, dict[str, str]] | None = None,
        vacant: int = 0,
    ) -> None:
        """`vacant` more tasks are left to the caller to start."""
        self._environments = environments or {}
        ports = free_ports(len(protocols) + vacant)
        self._spec = {"worker": [f"127.0.0.1:{port}" for port in ports]}
        self._protocols = list(protocols)
        self._folder = folder
        self.tasks = [self._start(index) for index in range(len(protocols))]
        for task in self.tasks:
            task.wait_until_ready()

    @classmethod
    def pair(cls, folder: Path, settings: dict[str, str] | None = None) -> Cluster:
        """Two workers over grpc+rdma with the same settings."""
        alike = settings or {}
        return cls(["grpc+rdma", "grpc+rdma"], folder, {0: alike, 1: alike})

    @property
    def target(self) -> str:
        """Where sessions connect: the server of task 0."""
        return f"grpc://{self._spec['worker'][0]}"

    @property
    def protocols(self) -> list[str]:
        """Of the workers."""
        return self._protocols

    @property
    def spec(self) -> dict[str, list[str]]:
        """Addresses by job."""
        return self._spec

    def restart(self, index: int) -> None:
        """A new process for a task, at the same address."""
        self.tasks[index].kill()
        self.tasks[index] = self._start(index)
        self.tasks[index].wait_until_ready()

    def reset_stats(self) -> None:
        """In all tasks."""
        for task in self.tasks:
            task.ask("reset")

    def stats(self, index: int) -> Any:
        """`rdmatensor.tensorflow.stats()` of a task."""
        return self.tasks[index].ask("stats")

    def environment(self, index: int) -> dict[str, str]:
        """That a task was given."""
        return os.environ | self._environments.get(index, {})

    @property
    def plans(self) -> bool:
        """Whether tensors are placed by the graph's plan."""
        return self.environment(0).get("RDMATENSOR_PLAN") != "off"

    @property
    def reads(self) -> bool:
        """Whether lent tensors are read into the receiver's memory."""
        return "RDMATENSOR_TEST_ALIAS_BYTES" in self.environment(0)

    def log(self, index: int) -> str:
        """What a task wrote to standard error."""
        return self.tasks[index].log.read_text()

    def warnings(self, index: int) -> list[str]:
        """What rdmatensor warned of in a task."""
        return [line for line in self.log(index).splitlines() if "rdmatensor: WARN" in line]

    def close(self) -> None:
        """Kill all."""
        for task in self.tasks:
            task.kill()

    def _start(self, index: int) -> Task:
        log = self._folder / f"worker{index}.log"
        environment = self._environments.get(index)
        return Task(self._spec, "worker", index, self._protocols[index], log, environment)


def within(seconds: float, function: Callable[..., T]) -> T:
    """The result of `function`, which must come in time: a step that hangs fails, it does not stop
    the test run."""
    outcome: list[tuple[bool, Any]] = []

    def run() -> None:
        try:
            outcome.append((True, function()))
        except BaseException as error:
            outcome.append((False, error))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if not outcome:
        raise AssertionError(f"still running after {seconds:.0f} s")
    succeeded, value = outcome[0]
    if not succeeded:
        raise value
    result: T = value
    return result
