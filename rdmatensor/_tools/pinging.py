# SPDX-License-Identifier: Apache-2.0
"""Measure and verify the connection between two devices, for `rdmatensor ping` and `rdmatensor doctor`."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from .._api.buffers import Array
from .._api.remote import RemoteDevice
from .._api.transfer import Transfer
from ..device import Device
from ..errors import ConnectionFailure, DeadlineExceeded, RdmaError

_WORD = 8
# At most this many transfers and bytes are in flight, but at least two transfers.
_IN_FLIGHT = 16
_BYTES_IN_FLIGHT = 8 << 20
_WAIT_S = 60.0  # the largest transfer may take this long on a slow link
_TEDIOUS_S = 0.5


class Effort(NamedTuple):
    """How long to measure: the seconds for each figure, and the sizes for bandwidth."""

    seconds: float
    sizes: tuple[int, ...]

    @property
    def figures(self) -> int:
        """The number of times that `measure` calls `step`."""
        return 2 + 2 * len(self.sizes)


BRIEF = Effort(0.02, (1 << 20,))
FULL = Effort(0.25, (4 << 10, 64 << 10, 1 << 20, 16 << 20))


@dataclass(frozen=True)
class Latency:
    """Times of one operation, in seconds."""

    p50: float
    p99: float
    samples: int


@dataclass(frozen=True)
class Speed:
    """Bytes per second, written and read in transfers of `size` bytes."""

    size: int
    write: float
    read: float


@dataclass(frozen=True)
class Result:
    """The result of `measure`.

    `write` is the latency of an 8-byte write until it is visible. `round_trip` is that of a notification
    which the peer's Python answers.
    """

    transport: str
    encrypted: bool
    write: Latency
    round_trip: Latency
    speeds: list[Speed]


class Corrupted(RdmaError):
    """The bytes that were read back differ from those that were written."""


def echo(
    device: Device,
    stop: threading.Event,
    seen: Callable[[RemoteDevice], object] = lambda _: None,
    gone: Callable[[RemoteDevice], object] = lambda _: None,
) -> None:
    """Answer every notification with its own content until `stop` is set.

    `seen` gets each peer at its first notification, `gone` at the end of its connection.
    """
    known: list[RemoteDevice] = []
    while not stop.is_set():
        try:
            notification = device.next_notification(timeout=0.2)
        except DeadlineExceeded:
            for peer in [peer for peer in known if not peer.up]:
                known.remove(peer)
                gone(peer)
            continue
        peer = notification.source
        if peer not in known:
            known.append(peer)
            seen(peer)
        with contextlib.suppress(ConnectionFailure):  # only this peer is gone
            peer.notify(notification.payload, notification.immediate)


def measure(
    device: Device, remote: RemoteDevice, effort: Effort, step: Callable[[], object] = lambda: None
) -> Result:
    """Measure the connection to `remote`, whose process runs `echo`. Calls `step` after each figure.

    Skips sizes for which one transfer would take half a second, judging by the size before. Nobody else may
    take the device's notifications meanwhile. Allocates the largest size once at the peer and twice here.
    Raises Corrupted if the bytes read back differ from those written, otherwise what the transfers raise.
    """
    largest = max(effort.sizes)
    speeds: list[Speed] = []
    with (
        device.allocate(largest) as source,
        device.allocate(largest) as target,
        remote.allocate(largest) as there,
    ):
        source.array[:] = np.random.default_rng().integers(1, 256, largest, dtype=np.uint8)
        word = source.array[:_WORD]
        write = _repeat(lambda: there.write(word).wait(_WAIT_S), effort.seconds)
        step()
        round_trip = _repeat(lambda: _round_trip(device, remote), effort.seconds)
        step()
        for size in effort.sizes:
            if speeds and size > _TEDIOUS_S * min(speeds[-1].write, speeds[-1].read):
                break
            data, back = source.array[:size], target.array[:size]
            back[:] = 0
            written = _stream(there.write, data, effort.seconds)
            step()
            was_read = _stream(there.read_into, back, effort.seconds)
            step()
            _compare(data, back, remote)
            speeds.append(Speed(size, written, was_read))
    return Result(remote.transport, remote.encrypted, write, round_trip, speeds)


def _repeat(operation: Callable[[], None], seconds: float) -> Latency:
    """Time operations one after the other. The first few warm up and do not count."""
    for _ in range(10):
        operation()
    times: list[float] = []
    end = time.perf_counter() + seconds
    while not times or time.perf_counter() < end:
        start = time.perf_counter()
        operation()
        times.append(time.perf_counter() - start)
    times.sort()
    return Latency(times[len(times) // 2], times[len(times) * 99 // 100], len(times))


def _round_trip(device: Device, remote: RemoteDevice) -> None:
    remote.notify(b"ping")
    device.next_notification(_WAIT_S)


def _stream(post: Callable[[Array], Transfer], data: Array, seconds: float) -> float:
    """Measure bytes per second with several transfers at a time."""
    post(data).wait(_WAIT_S)
    most = max(2, min(_IN_FLIGHT, _BYTES_IN_FLIGHT // data.nbytes))
    pending: deque[Transfer] = deque()
    count = 0
    start = time.perf_counter()
    while not count or time.perf_counter() < start + seconds:
        if len(pending) == most:
            pending.popleft().wait(_WAIT_S)
        pending.append(post(data))
        count += 1
    while pending:
        pending.popleft().wait(_WAIT_S)
    return count * data.nbytes / (time.perf_counter() - start)


def _compare(sent: Array, back: Array, remote: RemoteDevice) -> None:
    differ = np.flatnonzero(sent != back)
    if differ.size:
        raise Corrupted(
            f"{differ.size} of {sent.size} bytes came back changed from {remote.peer} over "
            f"{remote.transport}, the first at {differ[0]}: if this happens over shm too, "
            "test the memory; otherwise, test the card and its cable",
            "PROTOCOL",
        )
