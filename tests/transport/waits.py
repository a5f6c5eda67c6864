# SPDX-License-Identifier: Apache-2.0
"""Waiting for what peers do, and ports for them."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from typing import Any

import rdmatensor

# DEADLINE_MS is 10 s; a peer that dies is noticed at once where the transport tells.
NOTICED = 10.0


def eventually(condition: Callable[[], bool], timeout: float = NOTICED) -> bool:
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.02)
    return condition()


def lost(action: Callable[[], Any]) -> bool:
    try:
        action()
    except rdmatensor.ConnectionLost:
        return True
    return False


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])
