# SPDX-License-Identifier: Apache-2.0
"""Processes of other users of this host, who knock at a device's unix socket."""

from __future__ import annotations

import ctypes
import encodings.idna  # noqa: F401 (not to be found by other users)
import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from support.bootstrap import HELLO, Line, message, pack_hello

SOMEBODY = 12345
CLONE_NEWUSER = 0x10000000
# Of a HELLO that any device takes.
FIELDS = {
    "name": "stranger",
    "address": "127.0.0.1:9",
    "host_id": "",
    "local_name": "",
    "transports": "shm",
    "generation": 1,
    "nonce": bytes(32),
    "has_secret": False,
}


_unread: list[socket.socket] = []


@contextmanager
def another_process(action: Callable[[], object]) -> Iterator[str]:
    """Runs the action in a child: what it returned or raised. The child stays until the end."""
    reader, writer = os.pipe()
    there, here = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(here)
            os.close(reader)
            said = str(action())
        except BaseException as error:
            said = repr(error)
        try:
            os.write(writer, said.encode()[:4000])
            os.close(writer)
            os.read(there, 1)
        finally:
            os._exit(0)
    os.close(writer)
    os.close(there)
    try:
        with os.fdopen(reader) as answer:
            yield answer.read()
    finally:
        os.close(here)
        os.waitpid(child, 0)


def as_user(user: int, action: Callable[[], object]) -> Callable[[], object]:
    """The same as that user, in a process that root began and that does nothing else."""

    def act() -> object:
        os.setgroups([])
        os.setgid(user)
        os.setuid(user)
        return action()

    return act


def knows_nobody(action: Callable[[], object]) -> Callable[[], object]:
    """The same in a user namespace where no user has a number of its own. OSError where there are none."""

    def act() -> object:
        if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWUSER) != 0:
            error = ctypes.get_errno()
            raise OSError(error, os.strerror(error))
        return action()

    return act


def slow_to_close() -> socket.socket:
    """A TCP connection whose last close blocks for an hour: what it has to send goes to who never reads."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        line = socket.create_connection(listener.getsockname())
        _unread.append(listener.accept()[0])
    line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 3600))
    line.setblocking(False)
    try:
        while True:
            line.send(bytes(1 << 20))
    except BlockingIOError:
        return line


def knock_with_descriptors(name: str, times: int) -> Callable[[], str]:
    """Leaves as many of those connections in HELLOs on the unix socket `name`."""

    def act() -> str:
        problems: set[str] = set()
        for _ in range(times):
            try:
                left = slow_to_close()
                line = Line(name)
                socket.send_fds(line.socket, [message(HELLO, pack_hello(FIELDS))], [left.fileno()])
                line.close()
            except OSError as error:
                problems.add(str(error))
            finally:
                # Where nobody took it, this is the last close, and blocks.
                threading.Thread(target=left.close, daemon=True).start()
        return ", ".join(sorted(problems)) or "all were sent"

    return act
