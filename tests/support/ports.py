# SPDX-License-Identifier: Apache-2.0
"""Ports for servers that tests start."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import socket
from collections.abc import Iterator

_EACH = 5000


def _all_ports() -> Iterator[int]:
    """From somewhere on: another run of the tests may begin at the same time."""
    number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 4
    ports = range(12000 + _EACH * number, 12000 + _EACH * (number + 1))
    start = random.randrange(_EACH)
    return itertools.cycle([*ports[start:], *ports[:start]])


_ports = _all_ports()


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on, nor gets by asking for any: they are below those that Linux hands out.
    Processes that run tests at the same time (pytest -n) have different ones."""
    ports: list[int] = []
    while len(ports) < count:
        port = next(_ports)
        with socket.socket() as each, contextlib.suppress(OSError):
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            each.bind(("127.0.0.1", port))
            ports.append(port)
    return ports
