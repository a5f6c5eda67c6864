# SPDX-License-Identifier: Apache-2.0
"""Runs the programs of the benchmarks: ours in C, and those of rivals."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from record import Process
from team import Failed

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Done:
    """A program that has ended: its output, and what it used."""

    command: str
    status: int
    output: str
    used: Process

    def checked(self) -> Done:
        """This object. Failed, with the output, if the exit status is not 0."""
        if self.status:
            raise Failed(f"{self.command}: exit status {self.status}\n{self.output}")
        return self


def _open(
    words: Sequence[str], environment: Mapping[str, str], stderr: int
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        words,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        env={**os.environ, **environment},
    )


def run(
    command: Sequence[object], environment: Mapping[str, str] = {}, patience: float = 120.0
) -> Done:
    """Run a program, and kill it after `patience` seconds. OSError if it cannot be started."""
    words = [str(word) for word in command]
    with _open(words, environment, subprocess.STDOUT) as process:
        assert process.stdout is not None
        end = threading.Timer(patience, process.kill)
        end.start()
        try:
            output = process.stdout.read()
            _, status, used = os.wait4(process.pid, 0)
        finally:
            end.cancel()
        process.returncode = os.waitstatus_to_exitcode(status)
    name = Path(words[0]).name
    usage = Process(name, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024)
    return Done(" ".join(words), process.returncode, output, usage)


@contextlib.contextmanager
def started(
    command: Sequence[object], environment: Mapping[str, str] = {}
) -> Iterator[subprocess.Popen[str]]:
    """Run a program until the end of the block. OSError if it cannot be started."""
    with _open([str(word) for word in command], environment, subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            process.kill()


def first_line(process: subprocess.Popen[str]) -> str:
    """The line that a server prints when it is ready. Failed if it ends instead."""
    assert process.stdout is not None
    line = process.stdout.readline().strip()
    if not line:
        raise Failed(f"{process.args!r} ended at once")
    return line


def await_listener(process: subprocess.Popen[str], port: int, patience: float = 60.0) -> None:
    """Wait until a process listens at a port, without connecting to it, which it would take for its client.

    Failed if `process` ends instead, or if nothing listens after `patience` seconds.
    """
    end = time.monotonic() + patience
    while not _listens(process.pid, port):
        if process.poll() is not None:
            raise Failed(f"{process.args!r} ended with status {process.returncode}")
        if time.monotonic() > end:
            raise Failed(f"{process.args!r} does not listen after {patience:.0f} s")
        time.sleep(0.02)


def _listens(pid: int, port: int) -> bool:
    """Read the kernel's tables in the namespace of that process.

    Addresses end with the port in hexadecimal, and state 0A means listening.
    """
    folder = Path(f"/proc/{pid}/net")
    for table in (folder / "tcp", folder / "tcp6"):
        lines = table.read_text().splitlines() if table.exists() else []
        for fields in map(str.split, lines):
            if fields[1].endswith(f":{port:04X}") and fields[3] == "0A":
                return True
    return False


def first_device() -> str | None:
    """The first RDMA device of this machine, if there is one."""
    folder = Path("/sys/class/infiniband")
    return min((path.name for path in folder.iterdir()), default=None) if folder.exists() else None


def build_micro(folder: Path) -> Path:
    """Build bench/micro.c, the library that it is linked with, and beside it bench/bare.c and bulk.c."""
    tools = Path(sys.executable).parent
    settings = ["-DRDT_BUILD_BENCH=ON", "-DRDT_BUILD_TENSORFLOW=OFF"]
    ninja = tools / "ninja"
    generator = ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}"] if ninja.exists() else []
    cmake = str(tools / "cmake") if (tools / "cmake").exists() else "cmake"
    for command in (
        [cmake, "-S", ROOT, "-B", folder, *generator, *settings],
        [cmake, "--build", folder, "--target", "micro", "bare", "bulk", "--parallel", "2"],
    ):
        run(command, patience=600.0).checked()
    return folder / "micro"
