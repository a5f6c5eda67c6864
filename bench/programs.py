# SPDX-License-Identifier: Apache-2.0
"""Runs the programs of the benchmarks: ours in C, and those of rivals."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from team import Failed

ROOT = Path(__file__).resolve().parent.parent


def run(
    command: Sequence[object], environment: Mapping[str, str] = {}, patience: float = 120.0
) -> str:
    """The output of a program. Failed, with the output, if it fails, or takes over `patience` seconds."""
    words = [str(word) for word in command]
    with started(words, environment, subprocess.STDOUT) as process:
        try:
            output, _ = process.communicate(timeout=patience)
        except subprocess.TimeoutExpired:
            process.kill()
            output = f"{process.communicate()[0]}\nkilled after {patience:.0f} s"
    if process.returncode:
        raise Failed(f"{' '.join(words)}: exit status {process.returncode}\n{output}")
    return output


@contextlib.contextmanager
def started(
    command: Sequence[object],
    environment: Mapping[str, str] = {},
    stderr: int = subprocess.DEVNULL,
) -> Iterator[subprocess.Popen[str]]:
    """Run a program until the end of the block. OSError if it cannot be started."""
    with subprocess.Popen(
        [str(word) for word in command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        env={**os.environ, **environment},
    ) as process:
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


def test_device(folder: Path) -> Path:
    """Build the device that the tests give TensorFlow, of which each copy is one of memcpy."""
    spec = importlib.util.find_spec("tensorflow")
    assert spec and spec.submodule_search_locations
    home, library = Path(spec.submodule_search_locations[0]), folder / "libtest_device.so"
    sources = sorted((ROOT / "tests" / "plugin").glob("pluggable_*.c"))
    flags = ["-shared", "-fPIC", "-O2", "-pthread", "-fvisibility=hidden", "-D_GNU_SOURCE"]
    libraries = [f"-l:libtensorflow_{name}.so.2" for name in ("framework", "cc")]
    run(
        [
            "cc",
            *flags,
            "-isystem",
            home / "include",
            *sources,
            "-o",
            library,
            f"-L{home}",
            *libraries,
        ]
    )
    return library


def build(folder: Path, *programs: str) -> Path:
    """Build the C programs of bench/, and the library that micro is linked with, in a folder."""
    tools = Path(sys.executable).parent
    settings = ["-DRDT_BUILD_BENCH=ON", "-DRDT_BUILD_TENSORFLOW=OFF"]
    ninja = tools / "ninja"
    generator = ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}"] if ninja.exists() else []
    cmake = str(tools / "cmake") if (tools / "cmake").exists() else "cmake"
    run([cmake, "-S", ROOT, "-B", folder, *generator, *settings], patience=600.0)
    names = programs or ("micro", "sockets")
    run([cmake, "--build", folder, "--target", *names, "--parallel", "2"], {}, 600.0)
    return folder
