# SPDX-License-Identifier: Apache-2.0
"""The passive end of the benchmark, which offers a region and answers notifications.

`python -m rdmatensor.bench.peer` reads its order from standard input, a line of JSON: {"bytes": size of the
region, "bind": address or null, "secret": text or null, "settings": {name: value}}. It prints {"address":
"host:port"}, and ends when standard input closes or a notification says "end".
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import rdmatensor
from rdmatensor import config

REGION = "rdmatensor-bench"
END, USAGE = b"end", b"usage"
# Long enough for a debugging session; a benchmark ends long before.
_PATIENCE_S = 3600.0


def configure(order: Mapping[str, Any]) -> None:
    """Apply the settings and the secret of an order.

    The secret is in a file that only this user can read. Call `forget_secret` once the device is open.
    """
    for name, value in order["settings"].items():
        config.set(name, value)
    if order["secret"]:
        with tempfile.NamedTemporaryFile("w", delete=False) as file:  # its mode is 0600
            file.write(order["secret"])
        config.set("SECRET_FILE", file.name)


def forget_secret(order: Mapping[str, Any]) -> None:
    """Remove the file of `configure`."""
    if order["secret"]:
        Path(config.get("SECRET_FILE")).unlink()


def open_device(order: Mapping[str, Any], name: str) -> rdmatensor.Device:
    """Open a device with the settings of an order."""
    configure(order)
    try:
        return rdmatensor.Device(name=name, bind=order["bind"])
    finally:
        forget_secret(order)


def serve(device: rdmatensor.Device) -> None:
    """Answer each notification with its immediate value, until one says "end"."""
    for note in device.notifications(_PATIENCE_S):
        if note.payload == END:
            return
        with contextlib.suppress(rdmatensor.RdmaError):  # the peer may have disconnected
            note.source.notify(_answer(note.payload), note.immediate)


def _answer(payload: bytes) -> bytes:
    """The answer to "usage" is what this process has used; all others are empty."""
    if payload != USAGE:
        return b""
    from .record import Process

    # The kernel counts processor time in steps of 10 ms, which is too coarse.
    return json.dumps([time.process_time(), Process.of(os.getpid(), "").peak_bytes]).encode()


def _end_with_input() -> None:
    sys.stdin.buffer.read()
    os._exit(0)


def main() -> None:
    """Serve one driver."""
    order = json.loads(sys.stdin.readline())
    with open_device(order, "bench-peer") as device:
        device.allocate(order["bytes"], name=REGION).array[:] = 0
        print(json.dumps({"address": device.address}), flush=True)
        threading.Thread(target=_end_with_input, daemon=True).start()
        serve(device)


if __name__ == "__main__":
    main()
