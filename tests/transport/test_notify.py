# SPDX-License-Identifier: Apache-2.0
"""Notifications: order, loss, flow control, waiting, asyncio."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

import rdmatensor
from rdmatensor import RemoteDevice
from support.waits import AT_ONCE


@pytest.mark.parametrize("size", [0, 8, 4096, pytest.param(1, marks=pytest.mark.any_transport)])
def test_payload_and_immediate_arrive(peer: Any, remote: RemoteDevice, size: int) -> None:
    payload = bytes(range(256)) * 16
    remote.notify(payload[:size], immediate=2**64 - 1).wait()
    peer.run("note = device.next_notification(20)")
    assert peer.get("(note.payload, note.immediate)") == (payload[:size], 2**64 - 1)
    assert peer.get("note.source.transport") == remote.transport


def test_largest_payload(peer: Any, remote: RemoteDevice) -> None:
    largest = bytes(remote.max_notify)
    remote.notify(largest).wait()
    assert peer.get("len(device.next_notification(20).payload)") == len(largest)
    with pytest.raises(rdmatensor.RdmaError) as caught:
        remote.notify(largest + b"1")
    assert str(remote.max_notify) in str(caught.value)


@pytest.mark.any_transport
@pytest.mark.parametrize("immediate", [-1, 2**64, "1", 1.0])
def test_immediates_are_checked(remote: RemoteDevice, immediate: Any) -> None:
    with pytest.raises(rdmatensor.UsageError):
        remote.notify(immediate=immediate)


def test_both_directions_over_one_connection(
    peer: Any, device: rdmatensor.Device, remote: RemoteDevice
) -> None:
    remote.notify(b"hello")
    peer.run("note = device.next_notification(20)\nnote.source.notify(b'back', 3).wait()")
    note = device.next_notification(20)
    assert (note.payload, note.immediate) == (b"back", 3)
    assert note.source is remote


@pytest.mark.usefixtures("patient")
def test_flood_with_a_slow_consumer_loses_nothing(
    narrow: Any, device: rdmatensor.Device, note: Any
) -> None:
    """More than any ring holds, while nobody takes them; then they arrive complete, in order."""
    remote = device.connect(narrow.address)
    count, payload = 1000, bytes(2000)
    transfers = [remote.notify(payload, immediate=turn) for turn in range(count)]
    assert not transfers[-1].done(), "the sender should have run out of credit"
    for turn in range(50):
        assert narrow.get("device.next_notification(20).immediate") == turn
    narrow.run(
        "seen = [device.next_notification(20).immediate for _ in range(50, count)]", count=count
    )
    transfers[-1].wait(20)
    assert all(transfer.done() for transfer in transfers)
    assert narrow.get("seen == list(range(50, count))")
    assert device.stats().queued > 0
    note("queue full", "nothing: the Transfer waits for room", None, "everything arrives, in order")


def test_queue_of_the_reader_absorbs_a_flood(peer: Any, remote: RemoteDevice) -> None:
    count = 8000
    for turn in range(count):
        remote.notify(b"12345678", immediate=turn)
    assert peer.get(f"[device.next_notification(20).immediate for _ in range({count})]") == list(
        range(count)
    )


def test_waiting_writes_keep_their_buffers(clogged: Any) -> None:
    """Transfers that wait for credit, dropped at once: their bytes are sent all the same."""
    peer, remote = clogged.peer, clogged.remote
    peer.run("region = device.allocate(8 * 100, name='region')")
    region = remote.region("region")
    for turn in range(100):
        region.write(turn.to_bytes(8, "little"), 8 * turn)  # nobody else holds these bytes
    last = remote.notify(immediate=99)
    peer.run("while device.next_notification(20).immediate != 99: pass")
    last.wait()
    assert peer.get("region.array.view('int64').tolist()") == list(range(100))


@pytest.mark.any_transport
def test_small_ring(spawn: Any, device: rdmatensor.Device) -> None:
    """The smallest permitted ring still carries everything."""
    peer = spawn({"RDMATENSOR_TEST_RING_BYTES": "4096"})
    remote = device.connect(peer.address)
    peer.start("seen = [device.next_notification(20).immediate for _ in range(2000)]")
    for turn in range(2000):
        remote.notify(b"x" * (turn % 100), turn)
    peer.finish()
    assert peer.get("seen == list(range(2000))")


@pytest.mark.any_transport
@pytest.mark.usefixtures("patient")
def test_deadlines_of_waiting(device: rdmatensor.Device) -> None:
    for timeout in (0, 0.05, 0.3):
        begin = time.monotonic()
        with pytest.raises(rdmatensor.DeadlineExceeded):
            device.next_notification(timeout)
        assert timeout <= time.monotonic() - begin + 0.002 < timeout + AT_ONCE
    with pytest.raises(rdmatensor.UsageError):
        device.next_notification(-1)
    with pytest.raises(rdmatensor.UsageError):
        device.next_notification(float("nan"))


@pytest.mark.any_transport
def test_iteration_ends_when_nothing_comes(peer: Any, remote: RemoteDevice) -> None:
    for turn in range(3):
        remote.notify(immediate=turn).wait()
    assert peer.get("[n.immediate for n in device.notifications(0.2)]") == [0, 1, 2]


@pytest.mark.any_transport
def test_iteration_keeps_no_notification(peer: Any, remote: RemoteDevice) -> None:
    remote.notify(immediate=1).wait()
    found = peer.get(
        "(each := device.notifications(20), next(each).immediate, "
        "sum(isinstance(held, rdmatensor.Notification) for held in __import__('gc').get_objects()))"
        "[1:]"
    )
    assert found == (1, 0)


@pytest.mark.any_transport
def test_close_ends_a_wait_of_another_thread(device: rdmatensor.Device) -> None:
    outcome: list[BaseException] = []

    def wait() -> None:
        try:
            device.next_notification(60)
        except rdmatensor.RdmaError as error:
            outcome.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.2)  # most likely it waits by now; the outcome is the same if it does not
    device.close()
    thread.join(5)
    assert not thread.is_alive()
    assert isinstance(outcome[0], rdmatensor.Closed)


@pytest.mark.any_transport
def test_asyncio(peer: Any, device: rdmatensor.Device, remote: RemoteDevice) -> None:
    peer.run("region = device.allocate(1 << 20, name='region')")

    async def play() -> None:
        region = await remote.aregion("region")
        await region.write(b"12345678")
        data = bytearray(8)
        await region.read_into(data)
        assert data == b"12345678"

        async def go() -> None:
            for _ in range(10):
                await asyncio.sleep(0.01)
            await remote.notify(b"go")

        # Nothing comes before the loop has turned: a wait that blocks it ends by its time-out.
        peer.start("device.next_notification(60).source.notify(b'later')")
        going = asyncio.create_task(go())
        assert (await device.anext_notification(60)).payload == b"later"
        await going

    asyncio.run(play())
    peer.finish()


@pytest.mark.any_transport
def test_asyncio_waits_for_a_transfer_in_progress(clogged: Any) -> None:
    async def wait() -> None:
        await clogged.waiting

    # The delay is what is waited for.
    clogged.peer.start("time.sleep(0.3)\nfor _ in device.notifications(0.5): pass")
    asyncio.run(asyncio.wait_for(wait(), 20))
    assert clogged.waiting.done()
    clogged.peer.finish()


@pytest.mark.any_transport
@pytest.mark.usefixtures("patient")
def test_asyncio_wait_can_be_cancelled(clogged: Any) -> None:
    async def wait() -> None:
        await clogged.waiting

    begin = time.monotonic()
    with pytest.raises(asyncio.TimeoutError):
        asyncio.run(asyncio.wait_for(wait(), 0.1))
    assert time.monotonic() - begin < AT_ONCE
    assert not clogged.waiting.done()


@pytest.mark.any_transport
def test_cancelled_await_loses_no_notification(
    peer: Any, device: rdmatensor.Device, remote: RemoteDevice
) -> None:
    remote.notify(b"introduction")
    peer.run("source = device.next_notification(20).source")

    async def play() -> None:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(device.anext_notification(100), 0.05)

    begin = time.monotonic()
    asyncio.run(play())
    assert time.monotonic() - begin < AT_ONCE
    peer.run("source.notify(b'one'); source.notify(b'two')")
    notes = [device.next_notification(20).payload for _ in range(2)]
    assert notes == [b"one", b"two"]
