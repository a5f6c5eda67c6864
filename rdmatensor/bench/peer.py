# SPDX-License-Identifier: Apache-2.0
"""The other end of the benchmark: offers a region, answers notifications, and ends with its driver.

`python -m rdmatensor.bench.peer` reads one line of JSON from standard input: {"bytes": of the region,
"bind": address or null, "secret": text or null, "settings": {name: value}}, and writes one: {"address":
"host:port"}. It ends when standard input does, or with a notification "end".
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
# Somebody may look at the region with a debugger; the benchmark ends long before.
_PATIENCE_S = 3600.0


def configure(order: Mapping[str, Any]) -> None:
    """Put the settings of an order in force, and its secret, by a file that only this user can read and
    that is gone when the device has read it: call `forget_secret` then."""
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
    """A device with the settings of an order."""
    configure(order)
    try:
        return rdmatensor.Device(name=name, bind=order["bind"])
    finally:
        forget_secret(order)


def serve(device: rdmatensor.Device) -> None:
    """Answer each notification with its number, until one says "end"."""
    for note in device.notifications(_PATIENCE_S):
        if note.payload == END:
            return
        with contextlib.suppress(rdmatensor.RdmaError):  # of a peer that has gone meanwhile
            note.source.notify(_answer(note.payload), note.immediate)


def _answer(payload: bytes) -> bytes:
    """To "usage" what this process used so far; otherwise nothing."""
    if payload != USAGE:
        return b""
    from .record import Process

    # The kernel's own account has steps of 10 ms.
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
