# SPDX-License-Identifier: Apache-2.0
"""Waiting in event loops: thousands at once, in no thread; cancelled, closed, forked, in several loops."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rdmatensor
from rdmatensor import RemoteDevice, Transfer
from rdmatensor._api.event_loop import awaitable
from support.waits import PATIENCE
from transport.teams import Team

MANY = 5000


def play(program: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(program, PATIENCE))


def threads() -> set[str]:
    """Return the numbers of this process's threads. The kernel does not use one again soon."""
    return {each.name for each in Path("/proc/self/task").iterdir()}


async def settled() -> None:
    """Lets every task run until it waits."""
    for _ in range(3):
        await asyncio.sleep(0)


def readers(device: rdmatensor.Device, count: int) -> list[asyncio.Task[Any]]:
    return [asyncio.create_task(device.anext_notification(PATIENCE)) for _ in range(count)]


async def outcomes(tasks: list[asyncio.Task[Any]]) -> list[Any]:
    return await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.any_transport
@pytest.mark.usefixtures("patient")
def test_thousands_wait_in_no_thread_while_others_go_on(
    peer: Any, device: rdmatensor.Device, remote: RemoteDevice
) -> None:
    peer.run("back = device.connect(where)", where=device.address)
    peer.run("region = device.allocate(8 << 20, name='region')")
    region, data = remote.region("region"), rdmatensor.empty(8 << 20)

    async def program() -> None:
        await region.write(data)
        before = threads()
        waiting = readers(device, MANY)
        await settled()
        for _ in range(10):
            await region.write(data)
        assert not threads() - before  # a worker of the core may end meanwhile
        assert not any(task.done() for task in waiting)
        peer.start(f"for i in range({MANY}): back.notify(b'', i)")
        assert [note.immediate for note in await outcomes(waiting)] == list(range(MANY))
        peer.finish()

    play(program())


@pytest.mark.any_transport
@pytest.mark.usefixtures("patient")
def test_cancelling_takes_effect_at_once_and_loses_nothing(
    peer: Any, device: rdmatensor.Device, remote: RemoteDevice
) -> None:
    peer.run("back = device.connect(where)", where=device.address)

    async def program() -> None:
        waiting = readers(device, MANY)
        await settled()
        for task in waiting[:-1]:
            task.cancel()
        await settled()
        assert all(task.cancelled() for task in waiting[:-1])
        peer.run("for i in range(3): back.notify(b'', i)")
        assert (await waiting[-1]).immediate == 0
        assert (await device.anext_notification(PATIENCE)).immediate == 1
        assert (await device.anext_notification(PATIENCE)).immediate == 2
        # Each is cancelled when it is its turn, or is not its turn yet.
        waiting = readers(device, 100)
        await settled()
        peer.run("for i in range(50): back.notify(b'', i)")
        got: list[int] = []
        while len(got) < 50:
            first = waiting.pop(0)
            await asyncio.wait([first], timeout=None if len(waiting) % 2 else 0)
            first.cancel()
            got += [
                n.immediate for n in await outcomes([first]) if not isinstance(n, BaseException)
            ]
            waiting += readers(device, 1)
        assert got == list(range(50))
        for task in waiting:
            task.cancel()

    play(program())


@pytest.mark.any_transport
def test_a_notification_passed_on_by_a_cancelled_reader_reaches_the_next(
    device: rdmatensor.Device, peer: Any
) -> None:
    peer.run("back = device.connect(where)", where=device.address)

    async def program() -> None:
        first, second = readers(device, 2)
        await settled()
        seen = asyncio.get_running_loop().create_future()
        queue = rdmatensor._api.event_loop._running()
        wake = queue.readers[device]._wake

        def wake_and_cancel() -> None:
            wake()
            first.cancel()  # before it runs
            seen.set_result(None)

        token = queue.readers[device]._token
        assert token is not None
        queue._calls[token] = wake_and_cancel
        peer.run("back.notify(b'', 7)")
        await seen
        queue._calls[token] = wake
        assert (await second).immediate == 7
        assert first.cancelled()

    play(program())


@pytest.mark.any_transport
@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("where", ["loop", "thread"])
def test_closing_the_device_ends_every_wait(transport: str, where: str) -> None:
    async def program() -> None:
        device = rdmatensor.Device()
        waiting = readers(device, 500)
        await settled()
        if where == "loop":
            device.close()
        else:
            await asyncio.to_thread(device.close)
        errors = await outcomes(waiting)
        assert {type(error) for error in errors} == {rdmatensor.Closed}
        assert {error.status for error in errors} == {"CLOSED"}
        with pytest.raises(rdmatensor.Closed):
            await device.anext_notification()

    play(program())


@pytest.mark.usefixtures("patient")
def test_transfers_end_with_their_connection(clogged: Any) -> None:
    async def program() -> None:
        remote = clogged.remote
        posted = [remote.notify(bytes(1000)) for _ in range(1000)]
        waiting = [asyncio.ensure_future(each) for each in [clogged.waiting, *posted] * 2]
        await settled()
        assert not any(task.done() for task in waiting)
        clogged.peer.kill()
        errors = await outcomes(waiting)
        assert {type(error) for error in errors} == {rdmatensor.ConnectionLost}

    play(program())


@pytest.mark.any_transport
def test_transfers_complete_one_after_the_other(clogged: Any) -> None:
    async def program() -> None:
        posted = [clogged.remote.notify(bytes(1000)) for _ in range(300)]
        waiting = [asyncio.ensure_future(each) for each in posted]
        await settled()
        waiting[0].cancel()
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(posted[0], 0.01)
        clogged.peer.start("taken = sum(1 for _ in device.notifications(2))")
        assert await outcomes(waiting[1:]) == [None] * 299
        await posted[0]
        clogged.peer.finish()
        assert clogged.peer.get("taken") == clogged.posted + 300

    play(program())


@pytest.mark.any_transport
def test_waits_end_at_their_time_out(device: rdmatensor.Device, clogged: Any, setting: Any) -> None:
    async def program() -> None:
        with pytest.raises(rdmatensor.DeadlineExceeded):
            await device.anext_notification(0)
        with pytest.raises(rdmatensor.DeadlineExceeded):
            await device.anext_notification(0.05)
        with pytest.raises(rdmatensor.UsageError):
            await device.anext_notification(-1)
        setting("DEADLINE_MS", 200)
        with pytest.raises(rdmatensor.DeadlineExceeded):
            await device.anext_notification()
        with pytest.raises((rdmatensor.DeadlineExceeded, rdmatensor.ConnectionLost)):
            await clogged.waiting

    play(program())


@pytest.mark.any_transport
@pytest.mark.usefixtures("patient")
def test_loops_of_several_threads_share_a_device(
    peer: Any, device: rdmatensor.Device, remote: RemoteDevice
) -> None:
    peer.run("back = device.connect(where)", where=device.address)
    got: list[int] = []

    async def program() -> None:
        notes = await outcomes(readers(device, 100))
        got.extend(note.immediate for note in notes)

    loops = [threading.Thread(target=play, args=(program(),)) for _ in range(3)]
    plain = threading.Thread(
        target=lambda: got.extend(device.next_notification(PATIENCE).immediate for _ in range(100))
    )
    for thread in [*loops, plain]:
        thread.start()
    peer.run("for i in range(400): back.notify(b'', i)")
    for thread in [*loops, plain]:
        thread.join(PATIENCE)
    assert sorted(got) == list(range(400))


@pytest.mark.any_transport
def test_a_closed_loop_leaves_nothing_behind(device: rdmatensor.Device, peer: Any) -> None:
    peer.run("back = device.connect(where)", where=device.address)
    descriptors = set(Path("/proc/self/fd").iterdir())
    for _ in range(20):
        loop = asyncio.new_event_loop()
        abandoned = loop.create_task(device.anext_notification(PATIENCE))
        loop.run_until_complete(settled())
        loop.close()
        abandoned._log_destroy_pending = False  # type: ignore[attr-defined]
    assert len(set(Path("/proc/self/fd").iterdir()) - descriptors) <= 1, (
        "the last loop's, until the next"
    )
    peer.run("back.notify(b'', 1)")
    assert play(device.anext_notification(PATIENCE)).immediate == 1


@pytest.mark.any_transport
def test_a_forked_child_waits_in_a_loop_of_its_own(device: rdmatensor.Device, peer: Any) -> None:
    peer.run("back = device.connect(where)", where=device.address)

    async def in_child() -> bool:
        with pytest.raises(rdmatensor.UsageError, match="fork"):
            await device.anext_notification()
        with rdmatensor.Device() as own:
            task = asyncio.create_task(own.anext_notification(PATIENCE))
            await settled()
            await own.connect(peer.address).notify(b"child")
        return isinstance((await outcomes([task]))[0], rdmatensor.Closed)

    async def program() -> None:
        task = asyncio.create_task(device.anext_notification(PATIENCE))
        await settled()
        child = os.fork()
        if not child:
            asyncio.set_event_loop(None)
            asyncio._set_running_loop(None)
            try:
                os._exit(0 if asyncio.run(in_child()) else 1)
            finally:
                os._exit(2)
        assert (await asyncio.to_thread(os.waitpid, child, 0))[1] == 0
        peer.run("back.notify(b'', 5)")
        assert (await task).immediate == 5

    play(program())


@pytest.mark.any_transport
def test_operations_of_a_group_are_awaited_in_no_thread(pair: Team) -> None:
    pair.run(
        """
        import asyncio
        async def play():
            before = threading.active_count()
            started = [group.start("all_reduce", np.full(1000, i, "f4")) for i in range(100)]
            results = await asyncio.gather(*started)
            assert threading.active_count() == before
            return [float(each[0]) for each in results]
        sums = asyncio.run(asyncio.wait_for(play(), 100))
        """
    )
    assert pair.get("sums") == [[2.0 * i for i in range(100)]] * 2


@pytest.mark.any_transport
def test_what_is_awaited_twice_is_waited_for_once(clogged: Any) -> None:
    """A program that asks again and again leaves nothing behind each time."""

    async def program() -> None:
        for _ in range(200):
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(clogged.waiting, 0.001)
        queue = rdmatensor._api.event_loop._running()
        assert len(queue.completions) == 1
        assert len(queue._calls) == 1
        clogged.peer.start("taken = sum(1 for _ in device.notifications(1))")
        await clogged.waiting
        while queue.completions:  # awaiting what is complete takes no turn of the loop
            await asyncio.sleep(0)
        assert not queue._calls
        clogged.peer.finish()

    play(program())


def test_what_is_read_is_there_after_an_await(peer: Any, remote: RemoteDevice) -> None:
    peer.run("region = device.allocate(64 << 20, name='region'); region.array[:] = 7")
    region, arrays = remote.region("region"), [np.empty(4 << 20, np.uint8) for _ in range(16)]

    async def program() -> None:
        await asyncio.gather(*(region.read_into(a, i << 22) for i, a in enumerate(arrays)))
        assert all((array == 7).all() for array in arrays)

    play(program())


@pytest.mark.any_transport
def test_calls_that_block_can_be_awaited(peer: Any, device: rdmatensor.Device) -> None:
    peer.run("region = device.allocate(8, name='region'); region.array[:] = 7")

    async def program() -> None:
        remote = await device.aconnect(peer.address, timeout=PATIENCE)
        region, own = await asyncio.gather(remote.aregion("region"), remote.aallocate(64))
        assert (await region.aread(2)).tolist() == [7] * 6
        assert (await own.aread()).tolist() == [0] * 64
        with pytest.raises(rdmatensor.RegionError):
            await remote.aregion("nothing")
        with pytest.raises(rdmatensor.UsageError):
            await device.aconnect(7)  # type: ignore[arg-type]

    play(program())


@pytest.mark.any_transport
def test_groups_and_stores_are_awaited(transport: str) -> None:
    """Of one process: while one waits for the other, the loop goes on."""

    async def program() -> None:
        with rdmatensor.Device() as first, rdmatensor.Device() as second:
            groups = await asyncio.gather(
                rdmatensor.Group.ajoin(first, 0, 2),
                rdmatensor.Group.ajoin(second, 1, 2, first.address),
            )
            sums = await asyncio.gather(*(each.start("all_reduce", np.ones(4)) for each in groups))
            assert [np.asarray(each).tolist() for each in sums] == [[2.0] * 4] * 2
            stores = [
                rdmatensor.Store(each, rank, 2, 8, 8) for rank, each in enumerate((first, second))
            ]
            await asyncio.gather(
                stores[0].aconnect(1, second.address), stores[1].aconnect(0, first.address)
            )
            into = np.zeros(1)
            pulled = asyncio.create_task(stores[1].apull(0, into))
            stores[0].publish(np.ones(1), mark=5)
            assert (await pulled).mark == 5 and into[0] == 1
            waiting = asyncio.create_task(stores[0].atake(PATIENCE))
            assert await stores[1].apush(0, bytes(8), mark=3)
            arrival = await waiting
            assert arrival is not None and arrival.mark == 3
            clocks = asyncio.create_task(stores[0].await_clocks(1))
            stores[0].set_clock(1)
            stores[1].set_clock(1)
            await clocks

    play(program())


@pytest.mark.any_transport
def test_a_cancelled_take_loses_no_push(transport: str) -> None:
    async def program() -> None:
        with rdmatensor.Device() as device, rdmatensor.Device() as other:
            store, pusher = (
                rdmatensor.Store(device, 0, 2, 0, 8),
                rdmatensor.Store(other, 1, 2, 0, 8),
            )
            await pusher.aconnect(0, device.address)
            for mark in range(5):
                waiting = asyncio.create_task(store.atake(PATIENCE))
                await settled()
                waiting.cancel()
                assert await pusher.apush(0, bytes(8), mark)
                arrival = await store.atake(PATIENCE)
                assert arrival is not None and arrival.mark == mark
                arrival.release()

    play(program())


@pytest.mark.any_transport
def test_what_a_cancelled_call_returns_is_undone() -> None:
    begun, go, undone = threading.Event(), threading.Event(), Future[int]()

    def work() -> int:
        begun.set()
        assert go.wait(PATIENCE)
        return 7

    async def program() -> None:
        task = asyncio.create_task(awaitable(work, undone.set_result)())
        while not begun.is_set():
            await asyncio.sleep(0)
        task.cancel()
        assert isinstance((await outcomes([task]))[0], asyncio.CancelledError)
        go.set()

    play(program())
    assert undone.result(PATIENCE) == 7


@pytest.mark.usefixtures("patient")
def test_a_transfer_is_a_future(clogged: Any, caplog: pytest.LogCaptureFixture) -> None:
    called, ended = Future[Transfer](), Future[Transfer]()

    def fail(transfer: Transfer) -> None:
        raise ZeroDivisionError

    waiting: Transfer = clogged.waiting
    with pytest.raises(rdmatensor.DeadlineExceeded):
        waiting.result(0)
    with pytest.raises(rdmatensor.DeadlineExceeded):
        waiting.exception(0)
    for call in (fail, called.set_result):
        waiting.add_done_callback(call)
    assert not called.done()
    clogged.peer.start("for _ in device.notifications(0.5): pass")
    assert called.result(PATIENCE) is waiting
    assert waiting.done() and waiting.result() is None and waiting.exception() is None
    assert "ZeroDivisionError" in caplog.text
    waiting.add_done_callback(ended.set_result)
    assert ended.done(), "it is complete"
    clogged.peer.finish()


@pytest.mark.usefixtures("patient")
def test_a_transfer_that_fails_tells_its_error(clogged: Any) -> None:
    called = Future[Transfer]()
    clogged.waiting.add_done_callback(called.set_result)
    clogged.peer.kill()
    error = called.result(PATIENCE).exception()
    assert isinstance(error, rdmatensor.ConnectionLost)
    with pytest.raises(rdmatensor.ConnectionLost):
        clogged.waiting.result()
