# SPDX-License-Identifier: Apache-2.0
"""`rdmatensor softroce run`: one command on every host, its output live, its status ours."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import environment, native
from .errors import DeadlineExceeded, LabError, Unavailable
from .lab import Lab
from .process import Process, Sink

EXIT_TIMEOUT = 124
EXIT_SIGNAL = 128
FOREVER = 10 * 365 * 86400.0


@dataclass(frozen=True)
class Request:
    """The options of the command line."""

    command: tuple[str, ...]
    hosts: int
    timeout: float | None
    mode: str
    memory: int
    cpus: int | None
    mtu: int
    shared: Path | None
    env: dict[str, str]

    @classmethod
    def of(cls, options: dict[str, Any]) -> Request:
        """From click's values; `env` entries are NAME=VALUE, or NAME for its value here."""
        return cls(**{**options, "env": variables(options["env"])})


def variables(entries: tuple[str, ...]) -> dict[str, str]:
    """{name: value} of NAME=VALUE and of NAME. LabError for a NAME that is not set."""
    result = {}
    for entry in entries:
        name, given, value = entry.partition("=")
        if not given and name not in os.environ:
            raise LabError(f"--env {name}: that variable is not set")
        result[name] = value if given else os.environ[name]
    return result


class Lines:
    """A sink that writes whole lines to a descriptor, each with a mark in front."""

    def __init__(self, fd: int, mark: str) -> None:
        self._fd = fd
        self._mark = mark.encode()
        self._rest = b""

    def __call__(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        write(self._fd, b"".join(self._mark + line + b"\n" for line in lines))

    def flush(self) -> None:
        """Writes a last line that did not end."""
        if self._rest:
            self(b"\n")


def write(fd: int, data: bytes) -> None:
    """Writes all of it."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def sink(fd: int, rank: int) -> Sink:
    """Where a host's output goes: unchanged from the first, so that it can be piped."""
    return Lines(fd, f"[{rank}] ") if rank else lambda data: write(fd, data)


def run(request: Request, say: Callable[[str], None]) -> int:
    """Runs the command and returns its exit status. LabError."""
    why_not = why_not_native(request)
    if request.mode == "native" and why_not:
        raise Unavailable(f"--native: {why_not}")
    if not why_not:
        try:
            return run_natively(request, say)
        except Unavailable as error:
            if request.mode == "native":
                raise
            say(f"{error}; using a virtual machine")
    lab = Lab(
        request.hosts,
        memory=request.memory,
        cpus=request.cpus,
        mtu=request.mtu,
        shared=request.shared,
        say=say,
    )
    with lab:
        return run_in(lab, request, say)


def why_not_native(request: Request) -> str:
    """Why the running kernel is not used, "" when it is."""
    if request.mode == "qemu":
        return "a virtual machine is asked for"
    if request.hosts > 1:
        return "several hosts need virtual machines"
    return native.problem()


def run_natively(request: Request, say: Callable[[str], None]) -> int:
    """The same on this machine. Unavailable: no device can be had, and nothing has run."""
    with contextlib.ExitStack() as stack:
        device = stack.enter_context(native.device(request.mtu))
        shared = request.shared or stack.enter_context(
            tempfile.TemporaryDirectory(prefix="rdmatensor-lab-")
        )
        lab = environment.of_lab(0, (device.address,), Path(shared).resolve(), device.name)
        env = environment.for_commands() | lab | request.env
        try:
            return native.run(request.command, env, request.timeout)
        except DeadlineExceeded:
            return timed_out(request, say)


def timed_out(request: Request, say: Callable[[str], None]) -> int:
    """Says so; the exit status for it."""
    say(f"the command did not end in {request.timeout:g} s and was killed")
    return EXIT_TIMEOUT


def run_in(lab: Lab, request: Request, say: Callable[[str], None]) -> int:
    """The same in a lab that runs."""
    sys.stdout.flush()
    sinks = [(sink(1, host.rank), sink(2, host.rank)) for host in lab.hosts]
    processes = [
        host.start(request.command, env=request.env, stdout=out, stderr=err)
        for host, (out, err) in zip(lab.hosts, sinks, strict=True)
    ]
    end = time.monotonic() + (request.timeout or FOREVER)
    try:
        statuses = [status(process, end) for process in processes]
    except DeadlineExceeded:
        return timed_out(request, say)
    finally:
        for each in (each for pair in sinks for each in pair):
            if isinstance(each, Lines):
                each.flush()
    return next((each for each in statuses if each), 0)


def status(process: Process, end: float) -> int:
    """Its exit status as a shell tells it. GuestDied, DeadlineExceeded."""
    code = process.wait(max(0.0, end - time.monotonic()))
    return EXIT_SIGNAL - code if code < 0 else code
