# SPDX-License-Identifier: Apache-2.0
"""`rdmatensor softroce shell` connects this terminal to a command in a guest."""

from __future__ import annotations

import contextlib
import functools
import os
import select
import shutil
import signal
import sys
import termios
import tty
from collections.abc import Iterator
from types import FrameType

from .errors import LabError
from .host import Host
from .process import Process
from .run import write

_CHUNK = 4096
_POLL_MS = 100


@contextlib.contextmanager
def raw(fd: int) -> Iterator[None]:
    """Pass every key on unchanged, including Ctrl-C."""
    before = termios.tcgetattr(fd)
    try:
        tty.setraw(fd)
        yield
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)


def size() -> tuple[int, int]:
    """Return the rows and columns of this terminal."""
    columns, rows = shutil.get_terminal_size()
    return rows, columns


def interact(host: Host, command: list[str], env: dict[str, str]) -> int:
    """Run a command with this terminal and return its exit status as a shell does. Raises LabError."""
    if not sys.stdin.isatty():
        raise LabError(
            "shell needs a terminal; to run a script: rdmatensor softroce run -- sh SCRIPT"
        )
    sys.stdout.flush()
    rows, columns = size()
    process = host.start(
        command,
        env=env,
        terminal=f"{rows} {columns}",
        stdout=functools.partial(write, 1),
    )

    def resized(number: int, frame: FrameType | None) -> None:
        with contextlib.suppress(LabError):
            process.resize(*size())

    signal.signal(signal.SIGWINCH, resized)
    with raw(0):
        _pass_keys(process, host)
    return process.exit_status()


def _pass_keys(process: Process, host: Host) -> None:
    keys = select.poll()
    keys.register(0, select.POLLIN)
    while process.returncode is None and host.alive:
        if not keys.poll(_POLL_MS):
            continue
        data = os.read(0, _CHUNK)
        if not data:
            process.close_stdin()
            return
        process.write(data)
