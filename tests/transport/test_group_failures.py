# SPDX-License-Identifier: Apache-2.0
"""Groups: failures, and what an end leaves behind."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import rdmatensor
from support.peers import Peer
from support.waits import AT_ONCE, until
from transport.teams import Team

# Members notice at once where the transport tells, else by DEADLINE_MS, which is 10 s.
NOTICED = (
    60.0  # in so far as the machine is not busy otherwise: far below the operations' time-outs
)


# ---- failure ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [pytest.param(10, marks=pytest.mark.any_transport), 1 << 20])
def test_killed_member(spawn: Callable[..., Peer], count: int) -> None:
    """In the middle of operations: the others are told, and can form another group."""
    members = Team([spawn() for _ in range(3)]).join()
    source = """
    def play():
        while True:
            group.all_reduce(np.zeros(count, "float32"), timeout=100)
    """
    members.run(source, count=count)
    *others, doomed = members.peers
    doomed.start("play()")
    for peer in others:
        peer.start("outcome = failure(play); later = failure(lambda: group.barrier(timeout=100))")
    time.sleep(0.5)  # they are in the middle of some operation; any will do
    begin = time.monotonic()
    doomed.kill()
    for peer in others:
        peer.finish(NOTICED)
        assert peer.get("outcome[0]") == "ConnectionLost"
        assert peer.get("later[0]") == "ConnectionLost"
    assert time.monotonic() - begin < NOTICED
    for peer in others:
        peer.start(
            "group.close(); group = rdmatensor.Group(device, rank, 2, root, 'rest', timeout=20)"
        )
    for peer in others:
        peer.finish()
    for peer in others:
        peer.start("check(group, 'all_reduce', 'float32', 1000, 'new', False)")
    for peer in others:
        peer.finish()


@pytest.mark.any_transport
def test_loss_is_the_cause(spawn: Callable[..., Peer]) -> None:
    """Members whose operations differ because one was lost are told of the loss."""
    *others, doomed = (members := Team([spawn() for _ in range(3)]).join()).peers
    members.run("group.barrier()")
    doomed.kill()
    for peer in others:
        peer.run("assert failure(lambda: group.barrier(timeout=20))[0] == 'ConnectionLost'")
    source = """
    outcomes, end = set(), time.monotonic() + 0.5
    while time.monotonic() < end:
        outcomes.add(failure(play)[0])
    """
    calls = ["group.barrier(timeout=20)", "group.all_reduce(np.zeros(10), timeout=20)"]
    for peer, call in zip(others, calls, strict=True):
        peer.run(f"def play(): {call}")
        peer.start(source)
    for peer in others:
        peer.finish(NOTICED)
        assert peer.get("outcomes") == {"ConnectionLost"}


@pytest.mark.any_transport
@pytest.mark.parametrize(
    ("count", "registered"),
    [
        (10, False),
        (1 << 20, True),
        pytest.param(10, True, marks=pytest.mark.any_transport),
        pytest.param(1 << 20, False, marks=pytest.mark.any_transport),
    ],
)
@pytest.mark.usefixtures("patient")
def test_timed_out(pair: Team, count: int, registered: bool) -> None:
    first, second = pair.peers
    pair.run("make = group.empty if registered else np.zeros", registered=registered)
    call = "failure(lambda: group.all_reduce(make(count), timeout=0.3))"
    begin = time.monotonic()
    assert first.get(call, count=count)[0] == "DeadlineExceeded"
    assert time.monotonic() - begin < AT_ONCE
    # It failed for all: the other need not wait for what will not come.
    begin = time.monotonic()
    late = second.get("failure(lambda: group.all_reduce(make(count), timeout=90))", count=count)
    assert time.monotonic() - begin < AT_ONCE
    assert late[0] == "DeadlineExceeded", late
    pair.run("check(group, 'all_reduce', 'int32', 100000, 'in place', registered)")


def test_stopped_member(spawn: Callable[..., Peer]) -> None:
    """One that hangs is as one that does not call; nobody waits for its answer without end."""
    peers = [spawn({"RDMATENSOR_DEADLINE_MS": "2000"}) for _ in range(2)]
    first, second = Team(peers).join().peers
    second.stop()
    try:
        begin = time.monotonic()
        outcome = first.get("failure(lambda: group.all_reduce(np.zeros(1 << 20), timeout=1))")
        assert time.monotonic() - begin < NOTICED
        assert outcome[0] in ("DeadlineExceeded", "ConnectionLost"), outcome
    finally:
        second.resume()


@pytest.mark.any_transport
def test_cancelled_by_another_thread(pair: Team) -> None:
    first, second = pair.peers
    first.start(
        """
        threading.Timer(0.3, lambda: group.cancel(tag=5)).start()
        outcome = failure(lambda: group.all_reduce(np.zeros(100000), tag=5, timeout=20))
        """
    )
    first.finish()
    assert first.get("outcome[0]") == "Cancelled"
    assert (
        second.get("failure(lambda: group.all_reduce(np.zeros(100000), tag=5))[0]") == "Cancelled"
    )
    pair.run("check(group, 'all_reduce', 'int32', 100000, 'new', False)")


@pytest.mark.any_transport
def test_cancelled_before_it_starts(pair: Team) -> None:
    first, second = pair.peers
    first.run("group.cancel(tag=9)")
    first.run(
        "time.sleep(0.2)"
    )  # most likely the other knows by now; the outcome is the same if not
    assert second.get("failure(lambda: group.barrier(tag=9))[0]") == "Cancelled"
    assert first.get("failure(lambda: group.barrier(tag=9))[0]") == "Cancelled"
    pair.run("check(group, 'all_reduce', 'int32', 1000, 'new', False)")


@pytest.mark.any_transport
def test_cancel_all_that_is_under_way(pair: Team) -> None:
    first, second = pair.peers
    first.run(
        """
        started = [group.start("all_reduce", np.zeros(100000), timeout=20) for _ in range(3)]
        group.cancel()
        outcomes = [failure(lambda: each.wait(20))[0] for each in started]
        """
    )
    assert first.get("outcomes") == ["Cancelled"] * 3
    second.run(
        """
        started = [group.start("all_reduce", np.zeros(100000), timeout=20) for _ in range(3)]
        outcomes = [failure(lambda: each.wait(20))[0] for each in started]
        """
    )
    assert second.get("outcomes") == ["Cancelled"] * 3
    pair.run("check(group, 'all_reduce', 'int32', 1000, 'new', False)")


@pytest.mark.any_transport
def test_started_operation_cancels_and_fails(pair: Team) -> None:
    first, second = pair.peers
    first.run("operation = group.start('all_reduce', np.zeros(10), timeout=20)")
    first.run("others = [np.full(size, 255, 'uint8') for size in range(256) for _ in range(9)]")
    first.run("operation.cancel()")  # its tag is none of the memory that start gave back
    assert first.get("failure(lambda: operation.wait(20))[0]") == "Cancelled"
    first.run("operation.cancel()")
    first.run("late = group.start('all_reduce', np.zeros(10), tag=1, timeout=0.2)")
    assert first.get("failure(lambda: late.wait(20))[0]") == "DeadlineExceeded"
    with pytest.raises(AssertionError):
        first.run("group.start('all_reduce', np.zeros(10), tag=2, timeout=20).wait(0.1)")
    second.run("group.start('all_reduce', np.zeros(10), tag=2, timeout=20).wait()")


@pytest.mark.any_transport
def test_keyboard_interrupt(pair: Team) -> None:
    """Ctrl-C ends a wait long before its deadline, and the operation with it."""
    first, second = pair.peers
    begin = time.monotonic()
    first.run(
        """
        import signal
        threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            group.all_reduce(np.zeros(10), timeout=100)
        except KeyboardInterrupt:
            interrupted = True
        """
    )
    assert time.monotonic() - begin < AT_ONCE
    assert first.get("interrupted")
    assert (
        second.get("failure(lambda: group.all_reduce(np.zeros(10), timeout=20))[0]") == "Cancelled"
    )
    pair.run("check(group, 'all_reduce', 'int32', 1000, 'new', False)")


@pytest.mark.any_transport
def test_waiting_uses_no_cpu(pair: Team) -> None:
    first, second = pair.peers
    first.start("begin = time.process_time(); group.barrier(); used = time.process_time() - begin")
    # The delay is what the other waits for.
    second.run("time.sleep(1.5); group.barrier()")
    first.finish()
    assert first.get("used") < 0.75, "a member that waits for a late one sleeps most of the time"


# ---- the end ---------------------------------------------------------------------------------------


@pytest.mark.any_transport
def test_members_may_leave_after_their_last_operation(team: Any) -> None:
    """What they sent for it still counts, also when their devices are closed at once."""
    members = team(3)
    for _ in range(5):
        root = members.peers[0].get("(own := rdmatensor.Device()).address")
        for peer in members.peers[1:]:
            peer.run("own = rdmatensor.Device()")
        members.run(
            """
            with own, rdmatensor.Group(own, rank, size, address, timeout=20) as each:
                for count in (10, 1000, 10, 10):
                    assert (each.all_reduce(np.ones(count, "int32")) == size).all()
            """,
            address=root,
        )


@pytest.mark.any_transport
def test_closed_group(pair: Team) -> None:
    pair.run("group.barrier(); group.close(); group.close()")
    assert pair.get("group.closed") == [True, True]
    for call in (
        "group.barrier()",
        "group.all_reduce(np.zeros(3))",
        "group.info",
        "group.start('barrier')",
    ):
        assert {text[0] for text in pair.get(f"failure(lambda: {call})")} == {"Closed"}


@pytest.mark.any_transport
def test_close_ends_calls_of_other_threads(pair: Team) -> None:
    first, second = pair.peers
    first.run(
        """
        threading.Timer(0.3, lambda: group.close()).start()
        outcomes = in_threads([lambda tag=tag: group.barrier(tag=tag, timeout=60) for tag in range(3)])
        """
    )
    kinds = set(first.get("[type(each).__name__ for each in outcomes]"))
    assert kinds <= {"Cancelled", "Closed"}, kinds
    # The other member learns of it too.
    outcome = second.get("failure(lambda: group.barrier(tag=0, timeout=5))")
    assert outcome[0] in ("Cancelled", "ConnectionLost", "DeadlineExceeded"), outcome


@pytest.mark.any_transport
def test_device_closes_its_groups(device: rdmatensor.Device) -> None:
    group = rdmatensor.Group(device, 0, 1)
    array = group.empty(100)
    array[:] = 7
    device.close()
    assert group.closed
    with pytest.raises(rdmatensor.Closed):
        group.barrier()
    assert array.sum() == 700, "memory stays as long as the array"


def test_arrays_take_their_regions_with_them(
    alone: rdmatensor.Group, device: rdmatensor.Device
) -> None:
    before = device.stats().regions
    array = alone.empty((3, 1000), "int16")
    assert (array.shape, array.dtype, array.sum()) == ((3, 1000), np.dtype("int16"), 0)
    assert device.stats().regions == before + 1
    part = array[1:]
    del array
    gc.collect()
    assert device.stats().regions == before + 1, "a view keeps it"
    del part
    gc.collect()
    assert device.stats().regions == before
    assert alone.empty(0).size == 0


def test_peers_let_go_of_arrays_that_are_gone(pair: Team, transport: str) -> None:
    """Arrays made anew for each step do not fill the other member's address space."""
    turns = (
        40 if transport == "shm" else 5
    )  # elsewhere nothing is mapped, and registering takes long
    step = """
    for _ in range(turns):
        array = group.empty(100000, "int32")
        array[:] = rank
        assert (group.all_reduce(array, group.empty(100000, "int32")) == 1).all()
    """
    mappings = "sum(1 for line in open('/proc/self/maps'))"
    pair.run(step, turns=turns)
    before = pair.get(mappings)
    pair.run(step)
    pair.run(step)
    after = pair.get(mappings)
    assert all(b < a + turns for a, b in zip(before, after, strict=True)), (before, after)


@pytest.mark.any_transport
def test_nothing_leaks_over_many_groups(pair: Team) -> None:
    count = "(len(os.listdir('/proc/self/fd')), len(os.listdir('/proc/self/task')))"
    cycle = """
    for turn in range(5):
        with rdmatensor.Group(device, rank, size, root, f"turn {turn}", timeout=20) as each:
            check(each, "all_reduce", "float32", 100000, "new", False)
            each.barrier()
    """
    pair.run(cycle)
    before = pair.get(count)
    pair.run(cycle)
    pair.run(cycle)

    def given_back() -> bool:
        """Scratch that is kept for the next operations may come to it once."""
        return all(
            files_now < files + 5 and threads_now <= threads + 1
            for (files, threads), (files_now, threads_now) in zip(
                before, pair.get(count), strict=True
            )
        )

    until(lambda: f"descriptors, threads: {before}, then {pair.get(count)}", given_back)


@pytest.mark.any_transport
def test_after_fork(alone: rdmatensor.Group) -> None:
    child = os.fork()
    if child == 0:
        try:
            alone.barrier()
        except rdmatensor.UsageError:
            os._exit(0)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    alone.barrier()


@pytest.mark.any_transport
def test_waiting_after_fork(pair: Team) -> None:
    """The child would take the messages that its parent waits for."""
    first, second = pair.peers
    first.run(
        """
        import os

        operation = group.start("all_reduce", np.ones(1000), timeout=60)
        child = os.fork()
        if child == 0:
            try:
                operation.wait(10)
            except rdmatensor.UsageError as error:
                os._exit(0 if error.status == "FORKED" else 2)
            os._exit(1)
        ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        """
    )
    assert first.get("ended") == 0
    second.run("operation = group.start('all_reduce', np.ones(1000))")
    for member in (first, second):
        assert member.get("operation.result(60).tolist() == [2] * 1000")
