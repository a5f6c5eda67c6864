# SPDX-License-Identifier: Apache-2.0
"""What peers in the hosts of a lab do to each other; imported there."""

from __future__ import annotations

import time
import zlib
from typing import Any

import numpy as np

import rdmatensor
from rdmatensor import Device, RemoteDevice, RemoteRegion, Transfer


def connect_once_found(device: Device, address: str, seconds: float = 60) -> RemoteDevice:
    """Connects to a host that may not answer yet who it is, as one whose link was down a moment ago."""
    end = time.monotonic() + seconds
    while True:
        try:
            return device.connect(address, timeout=20)
        except rdmatensor.ConnectionRefused as error:
            if "No route to host" not in str(error) or time.monotonic() > end:
                raise
            time.sleep(0.1)


def pattern(size: int, seed: int) -> Any:
    """Bytes that differ from each other and between seeds; cheap to make."""
    words = np.arange(size // 4 + 2, dtype=np.uint32) * np.uint32(2654435761) + np.uint32(seed)
    return words.view(np.uint8)[3 : size + 3]


def crc(data: Any) -> int:
    return zlib.crc32(data)


def source(device: Device, data: Any, registered: bool) -> Any:
    """The bytes in memory that lies in a region, or in none."""
    if not registered:
        return data
    array = device.allocate(len(data)).array
    array[:] = data
    return array


def write_and_read_back(
    device: Device, region: RemoteRegion, size: int, seed: int, registered: bool
) -> int:
    """Writes a pattern, reads it back into other memory; its checksum."""
    data = source(device, pattern(size, seed), registered)
    region.write(data, seed).wait(60)
    back = source(device, np.zeros(size, np.uint8), registered)
    region.read_into(back, seed).wait(60)
    assert crc(back) == crc(data), f"{size} bytes came back different"
    return crc(data)


def flood(remote: RemoteDevice, region: RemoteRegion, count: int) -> list[Transfer]:
    """Posts `count` tensors of many sizes, each into a place of its own, without waiting."""
    place = region.nbytes // count
    transfers = []
    for turn in range(count):
        size = turn * 37 % place + 1
        transfers.append(region.write(pattern(size, turn), turn * place, notify=turn))
    return transfers


def check_flood(device: Device, array: Any, count: int) -> list[int]:
    """Takes the notifications of a flood; those out of order or whose tensor is not there."""
    place = len(array) // count
    bad = []
    for turn in range(count):
        note = device.next_notification(60)
        size, start = turn * 37 % place + 1, turn * place
        right = np.array_equal(array[start : start + size], pattern(size, turn))
        if note.immediate != turn or not right:
            bad.append(turn)
    return bad


def write_until_lost(region: RemoteRegion, data: Any, window: int = 8) -> dict[str, Any]:
    """Writes again and again, `window` at a time, until it fails, and returns how."""
    transfers: list[Transfer] = []
    try:
        while True:
            transfers.append(region.write(data))
            if len(transfers) >= window:
                transfers.pop(0).wait(60)
    except rdmatensor.RdmaError as error:
        end = time.monotonic() + 20
        while not all(transfer.done() for transfer in transfers) and time.monotonic() < end:
            time.sleep(0.01)
        return {
            "kind": type(error).__name__,
            "status": error.status,
            "text": str(error),
            "pending": sum(not transfer.done() for transfer in transfers),
        }


def attempt(action: Any) -> dict[str, Any]:
    """What an action raises, and how long that took."""
    begin = time.monotonic()
    try:
        action()
    except rdmatensor.RdmaError as error:
        took = time.monotonic() - begin
        return {
            "kind": type(error).__name__,
            "status": error.status,
            "text": str(error),
            "took": took,
        }
    return {"kind": "", "status": "OK", "text": "", "took": time.monotonic() - begin}


def until_lost(action: Any, seconds: float = 30) -> dict[str, Any]:
    """Repeats an action until it raises; what, and after how long."""
    begin = time.monotonic()
    while True:
        outcome = attempt(action)
        outcome["took"] = time.monotonic() - begin
        if outcome["kind"] or outcome["took"] > seconds:
            return outcome
        time.sleep(0.02)


def queue_pairs(pid: int) -> int:
    """How many reliable queue pairs a process has, as the kernel tells."""
    import json
    import subprocess

    out = subprocess.run(
        ["rdma", "-j", "resource", "show", "qp", "link", "rxe0/1"],
        capture_output=True,
        text=True,
        check=True,
    )
    rows = json.loads(out.stdout or "[]")
    return sum(1 for row in rows if row.get("pid") == pid and row.get("type") == "RC")
