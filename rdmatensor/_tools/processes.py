# SPDX-License-Identifier: Apache-2.0
"""Processes on this machine that end with the program that started them, and ports for them.

Free of TensorFlow: programs that only start others begin at once.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType

GRACE_S = 3.0
# Reads "+PID" and "-PID" lines. At their end, which is the program's, it kills the groups that are left.
_GUARD = """
import os, signal, sys
groups = set()
for line in sys.stdin:
    (groups.add if line[0] == "+" else groups.discard)(int(line[1:]))
for group in groups:
    try:
        os.killpg(group, signal.SIGKILL)
    except OSError:
        pass
"""

Process = subprocess.Popen[bytes]


class Crew:
    """Processes that end with the block, and with this program however it ends, by SIGKILL too.

    Each process leads a group of its own; ending it ends all that it started. Ctrl-C in a terminal reaches
    this program only. Any thread may call the methods, one at a time for each process.
    """

    def __init__(self) -> None:
        self._running: list[Process] = []
        self._guard = subprocess.Popen(
            [sys.executable, "-S", "-E", "-c", _GUARD],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        assert self._guard.stdin is not None
        with contextlib.suppress(OSError):
            self._guard.stdin.close()
        self._guard.wait()

    def start(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        stderr: int = subprocess.PIPE,
        stdout: int = subprocess.PIPE,
    ) -> Process:
        """Start a Python with these arguments. `environment` is added to this program's.

        Its streams are pipes, but `stderr` and `stdout` may be descriptors.
        """
        return self.run([sys.executable, *arguments], environment, stderr, stdout)

    def run(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        stderr: int = subprocess.PIPE,
        stdout: int = subprocess.PIPE,
        folder: str | None = None,
    ) -> Process:
        """Start any program as start does, in a folder; None is the current one."""
        process = subprocess.Popen(
            command,
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=stdout,
            stderr=stderr,
            env={**os.environ, **environment},
            start_new_session=True,
        )
        self._running.append(process)
        self._tell("+", process)
        return process

    def wait(self, process: Process) -> int:
        """Wait for the process, and end what it left behind. The exit status is negative for a signal."""
        # Until the process is reaped, no other group can get its number.
        with contextlib.suppress(ChildProcessError):  # stop() has reaped it
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
            self._kill(process)
        return process.wait()

    def stop(self, ask: Callable[[Process], object] | None = None, grace: float = GRACE_S) -> None:
        """End all processes: call `ask` for each, by default SIGTERM for its group.

        Sends SIGKILL after `grace` seconds, or at once when interrupted.
        """
        with contextlib.suppress(KeyboardInterrupt):
            for process in self._running:
                (ask or terminate)(process)
            deadline = time.monotonic() + grace
            for process in self._running:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(max(0.0, deadline - time.monotonic()))
        for process in self._running:
            self._kill(process)
            process.wait()
        self._running.clear()

    def _kill(self, process: Process) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        self._tell("-", process)

    def _tell(self, what: str, process: Process) -> None:
        assert self._guard.stdin is not None
        # The guard may have been killed, and has ended once the block is left.
        with contextlib.suppress(OSError, ValueError):
            self._guard.stdin.write(f"{what}{process.pid}\n".encode())
            self._guard.stdin.flush()


def terminate(process: Process) -> None:
    """Send SIGTERM to the process, unless it has ended, and to what it has started."""
    if process.returncode is None:  # else the number may be another group's
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)


def ending(status: int) -> str:
    """Say in words how a process ended."""
    if status < 0:
        return f"was ended by {signal.Signals(-status).name}"
    return f"exited with status {status}"


@contextlib.contextmanager
def reserved_addresses(count: int) -> Iterator[list[str]]:
    """Give `count` different "localhost:PORT" that only TensorFlow's servers can take within the block.

    This program binds the ports but does not listen. So nobody gets them who asks for any free port, or who
    does not set SO_REUSEADDR, as TensorFlow's servers do. The ports are below the range that the kernel
    uses for outgoing connections. Raises OSError if there are too few.
    """
    with contextlib.ExitStack() as stack:
        ports: list[int] = []
        for port in random.SystemRandom().sample(range(10000, 32000), 22000):
            if len(ports) == count:
                break
            # Without SO_REUSEADDR, binding fails if another program has reserved the port in the same way.
            with socket.socket() as probe, contextlib.suppress(OSError):
                probe.bind(("127.0.0.1", port))
                probe.close()
                held = stack.enter_context(socket.socket())
                held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                held.bind(("127.0.0.1", port))
                ports.append(port)
        if len(ports) < count:
            raise OSError(f"{count} free ports are needed, this machine has {len(ports)}")
        yield [f"localhost:{port}" for port in ports]


def free_addresses(count: int) -> list[str]:
    """Return what reserved_addresses gives, but do not keep the ports."""
    with reserved_addresses(count) as addresses:
        return addresses


@contextlib.contextmanager
def terminate_like_interrupt() -> Iterator[None]:
    """Make SIGTERM and SIGHUP raise KeyboardInterrupt within the block, so that processes are ended.

    The signal's name is the argument of the KeyboardInterrupt.
    """

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt(signal.Signals(number).name)

    before = {
        number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
