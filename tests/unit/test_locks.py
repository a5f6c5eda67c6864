# SPDX-License-Identifier: Apache-2.0
"""Buffers that a device drops may run code of the user, which may need any other thread to get on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import numpy as np
import pytest

import rdmatensor
from rdmatensor._api.transfer import Transfer

PATIENCE = 20.0


@pytest.fixture
def pair() -> Iterator[tuple[rdmatensor.Device, rdmatensor.RemoteDevice]]:
    """A device, and its connection to another one that takes no notifications and soon has enough."""
    with ExitStack() as ends:
        for name, value in {
            "TRANSPORTS": "shm",
            "RING_BYTES": "4K",
            "NOTIFY_QUEUE_BYTES": "4K",
        }.items():
            ends.callback(rdmatensor.config.set, name, rdmatensor.config.get(name))
            rdmatensor.config.set(name, value)
        ours = ends.enter_context(rdmatensor.Device())
        theirs = ends.enter_context(rdmatensor.Device())
        yield ours, ours.connect(theirs.address)


class Finalizer:
    """Kept by a transfer; when it is dropped, another thread does something, which must come to its end."""

    def __init__(self, action: Callable[[], object], result: list[bool]) -> None:
        self._action, self._result = action, result

    def __del__(self) -> None:
        thread = threading.Thread(target=self._action, daemon=True)
        thread.start()
        thread.join(PATIENCE)
        self._result.append(not thread.is_alive())


class Complete(Transfer):
    """As one whose completion nobody has noticed until it is asked."""

    def __init__(self, keep: object) -> None:
        super().__init__(None, keep)

    def done(self) -> bool:
        self._keep = None
        return True


def run(action: Callable[[], object], result: list[bool]) -> None:
    """What went well on another thread; here an interpreter would hang with it."""
    thread = threading.Thread(target=action, daemon=True)
    thread.start()
    thread.join(3 * PATIENCE)
    assert not thread.is_alive()
    assert result == [True]


def test_a_buffer_dropped_while_posting(
    pair: tuple[rdmatensor.Device, rdmatensor.RemoteDevice],
) -> None:
    _, remote = pair
    result: list[bool] = []
    remote._pending.append(Complete(Finalizer(remote.close, result)))

    def post() -> None:
        while not result:  # what is complete at once is not tracked
            remote.notify(bytes(500))

    run(post, result)


def test_a_buffer_dropped_while_connecting(
    pair: tuple[rdmatensor.Device, rdmatensor.RemoteDevice],
) -> None:
    device, remote = pair
    address = remote.address
    remote.close()
    device._remotes[0] = remote  # as one whose peer went
    result: list[bool] = []
    remote._pending.appendleft(Complete(Finalizer(device.stats, result)))
    run(lambda: device.connect(address), result)


def test_a_buffer_dropped_while_closing(
    pair: tuple[rdmatensor.Device, rdmatensor.RemoteDevice],
) -> None:
    device, remote = pair
    result: list[bool] = []
    remote._pending.appendleft(Complete(Finalizer(device.stats, result)))
    run(remote.close, result)


def test_a_buffer_dropped_with_its_region(
    pair: tuple[rdmatensor.Device, rdmatensor.RemoteDevice],
) -> None:
    device, _ = pair
    result: list[bool] = []

    region = device.allocate(64)
    region._array = Finalizer(device.stats, result)  # type: ignore[assignment]
    run(region.close, result)


def test_a_buffer_dropped_while_a_group_starts_an_operation(
    pair: tuple[rdmatensor.Device, rdmatensor.RemoteDevice],
) -> None:
    device, _ = pair
    with rdmatensor.Group(device, 0, 1, device.address) as group:
        result: list[bool] = []
        group._calls._pending.appendleft(Complete(Finalizer(lambda: group.info, result)))  # type: ignore[arg-type]
        array = np.ones(8, np.float32)
        run(lambda: group.start("all_reduce", array).wait(), result)
