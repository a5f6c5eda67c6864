# SPDX-License-Identifier: Apache-2.0
"""`rdmatensor softroce run` runs one command on every host, with live output."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from . import environment, native
from .errors import DeadlineExceeded, LabError, Unavailable
from .lab import Lab
from .process import Sink

EXIT_TIMEOUT = 124
FOREVER = 10 * 365 * 86400.0


def variables(entries: tuple[str, ...]) -> dict[str, str]:
    """Parse NAME=VALUE, or NAME for its current value. Raises LabError if NAME is not set."""
    result = {}
    for entry in entries:
        name, given, value = entry.partition("=")
        if not given and name not in os.environ:
            raise LabError(f"--env {name}: that variable is not set")
        result[name] = value if given else os.environ[name]
    return result


class Lines:
    """A sink that writes whole lines to a descriptor, with a mark before each line."""

    def __init__(self, fd: int, mark: str) -> None:
        self._fd = fd
        self._mark = mark.encode()
        self._rest = b""

    def __call__(self, data: bytes) -> None:
        """Write the lines that `data` completes, each after the mark."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        write(self._fd, b"".join(self._mark + line + b"\n" for line in lines))

    def flush(self) -> None:
        """Write a last line that has no newline."""
        if self._rest:
            self(b"\n")


def write(fd: int, data: bytes) -> None:
    """Write all of `data` to a descriptor."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def sink(fd: int, rank: int) -> Sink:
    """Return the sink for a host's output. The first host's output stays unchanged for pipes."""
    return Lines(fd, f"[{rank}] ") if rank else functools.partial(write, fd)


def run(
    command: tuple[str, ...],
    env: dict[str, str],
    say: Callable[[str], None],
    *,
    hosts: int,
    timeout: float | None,
    mode: str | None,
    machine: dict[str, Any],
) -> int:
    """Run a command on every host and return its exit status. Raises LabError.

    `mode` is "native", "qemu" or None for either. `machine` holds keyword arguments of Lab.
    """
    try:
        why_not = why_not_native(mode, hosts)
        if why_not and mode == "native":
            raise Unavailable(f"--native: {why_not}")
        if not why_not:
            try:
                return run_natively(command, env, timeout, machine)
            except Unavailable as error:
                if mode == "native":
                    raise
                say(f"{error}; using a virtual machine")
        with Lab(hosts, **machine, say=say) as lab:
            return run_in(lab, command, env, timeout)
    except CommandTimeout:
        say(f"the command did not end in {timeout:g} s and was killed")
        return EXIT_TIMEOUT


class CommandTimeout(Exception):
    """The command ran past --timeout."""


def why_not_native(mode: str | None, hosts: int) -> str:
    """Return why the running kernel is not used, or "" if it is."""
    if mode == "qemu":
        return "--qemu asks for a virtual machine"
    if hosts > 1:
        return "several hosts need virtual machines"
    return native.problem()


def run_natively(
    command: tuple[str, ...], env: dict[str, str], timeout: float | None, machine: dict[str, Any]
) -> int:
    """Run the command on this machine. Raises Unavailable, before it runs, if there is no device."""
    with contextlib.ExitStack() as stack:
        device = stack.enter_context(native.device(machine["mtu"]))
        shared = machine["shared"] or stack.enter_context(
            tempfile.TemporaryDirectory(prefix="rdmatensor-lab-")
        )
        lab = environment.of_lab(0, (device.address,), Path(shared).resolve(), device.name)
        try:
            return native.run(command, environment.for_commands() | lab | env, timeout)
        except DeadlineExceeded as error:
            raise CommandTimeout from error


def run_in(lab: Lab, command: tuple[str, ...], env: dict[str, str], timeout: float | None) -> int:
    """Run the command on every host of a lab."""
    sys.stdout.flush()
    sinks = [(sink(1, host.rank), sink(2, host.rank)) for host in lab.hosts]
    processes = [
        host.start(command, env=env, stdout=out, stderr=err)
        for host, (out, err) in zip(lab.hosts, sinks, strict=True)
    ]
    end = time.monotonic() + (timeout or FOREVER)
    try:
        statuses = [process.exit_status(max(0.0, end - time.monotonic())) for process in processes]
    except DeadlineExceeded as error:
        raise CommandTimeout from error
    finally:
        for each in (each for pair in sinks for each in pair):
            if isinstance(each, Lines):
                each.flush()
    return next((each for each in statuses if each), 0)
