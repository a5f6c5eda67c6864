# SPDX-License-Identifier: Apache-2.0
"""`rdmatensor softroce shell`: a command in a guest with this terminal as its own."""

from __future__ import annotations

import contextlib
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

_CHUNK = 4096
_POLL_MS = 100


@contextlib.contextmanager
def raw(fd: int) -> Iterator[None]:
    """Every key goes through as it is, Ctrl-C too."""
    before = termios.tcgetattr(fd)
    try:
        tty.setraw(fd)
        yield
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)


def size() -> tuple[int, int]:
    """Rows and columns of this terminal."""
    columns, rows = shutil.get_terminal_size()
    return rows, columns


def interact(host: Host, command: list[str], env: dict[str, str]) -> int:
    """Runs a command with this terminal. Its exit status, as a shell tells it. LabError."""
    if not sys.stdin.isatty():
        raise LabError("shell needs a terminal; for a script: rdmatensor softroce run -- sh SCRIPT")
    sys.stdout.flush()
    rows, columns = size()
    process = host.start(
        command,
        env=env,
        terminal=f"{rows} {columns}",
        stdout=lambda data: _write_all(1, data),
    )

    def resized(number: int, frame: FrameType | None) -> None:
        with contextlib.suppress(LabError):
            process.resize(*size())

    signal.signal(signal.SIGWINCH, resized)
    with raw(0):
        _pass_keys(process, host)
    status = process.wait()
    return 128 - status if status < 0 else status


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


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
