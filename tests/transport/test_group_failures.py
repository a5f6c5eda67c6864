# SPDX-License-Identifier: Apache-2.0
"""Groups: wrong use, joining, failures, and what an end leaves behind."""

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
from support.waits import AT_ONCE
from transport.teams import Team

# Members notice at once where the transport tells, else by DEADLINE_MS, which is 10 s.
NOTICED = (
    60.0  # in so far as the machine is not busy otherwise: far below the operations' time-outs
)


# ---- wrong use -------------------------------------------------------------------------------------


def read_only() -> Any:
    array = np.zeros(4)
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda g: g.all_reduce([1.0, 2.0]), "numpy.asarray"),
        (lambda g: g.broadcast([1.0]), "numpy.asarray"),
        (lambda g: g.all_reduce(np.zeros((4, 4))[:, 1]), "C-contiguous"),
        (lambda g: g.all_reduce(np.zeros(4), np.zeros(8)[::2]), "C-contiguous"),
        (lambda g: g.all_reduce(np.zeros(4, complex)), "complex128"),
        (lambda g: g.all_reduce(np.zeros(4, bool)), "bool"),
        (lambda g: g.all_reduce(np.zeros(4, ">f4")), "byte order"),
        (lambda g: g.all_reduce(np.array([None])), "object"),
        (lambda g: g.all_reduce(read_only(), read_only()), "read-only"),
        (lambda g: g.broadcast(read_only()), "read-only"),
        (lambda g: g.all_reduce(np.zeros(4), np.zeros(5)), "5 elements"),
        (lambda g: g.all_reduce(np.zeros(4), np.zeros(4, "f4")), "float32"),
        (lambda g: g.all_gather(np.zeros(4), np.zeros(5)), "5 elements"),
        (lambda g: g.all_reduce(np.zeros(4), op="mean"), "sum, product, min, max"),
        (lambda g: g.all_reduce(np.zeros(4), op=["sum"]), "sum, product, min, max"),
        (lambda g: g.all_reduce(np.zeros(4), algorithm="best"), "hierarchical"),
        (lambda g: g.broadcast(np.zeros(4), root=1), "root"),
        (lambda g: g.broadcast(np.zeros(4), root=-1), "root"),
        (lambda g: g.all_reduce(np.zeros(4), timeout=-1), "timeout"),
        (lambda g: g.all_reduce(np.zeros(4), tag=-1), "tag"),
        (lambda g: g.all_reduce(np.zeros(4), tag="1"), "tag"),
        (lambda g: g.cancel(2**63), "tag"),
        (lambda g: g.barrier(detail=1), "detail is 1: give a str"),
        (lambda g: g.start("barrier", detail=b"x"), "give a str"),
        (lambda g: g.start("reduce", np.zeros(4)), "all_gather"),
        (lambda g: g.start("all_reduce"), "needs an array"),
        (lambda g: g.choose("reduce", 1), "all_gather"),
        (lambda g: g.choose("all_reduce", -1), "nbytes"),
        (lambda g: g.empty(-1), "negative"),
        (lambda g: g.empty(3, object), "objects"),
    ],
)
def test_wrong_arguments(alone: rdmatensor.Group, call: Any, text: str) -> None:
    with pytest.raises(rdmatensor.UsageError, match=text):
        call(alone)
    array = np.arange(4.0)
    assert (alone.all_reduce(array) == array).all(), "and the group goes on"


def test_overlapping_arrays(alone: rdmatensor.Group) -> None:
    array = np.zeros(10)
    with pytest.raises(rdmatensor.UsageError, match="overlap"):
        alone.all_reduce(array[:8], array[2:])


def test_parts_must_be_equal(pair: Team) -> None:
    for kind in ("reduce_scatter", "all_to_all"):
        for shape in ((3,), (), (1, 2)):
            outcome = f"failure(lambda: group.{kind}(np.zeros({shape})))"
            assert {kind for kind, _ in pair.get(outcome)} == {"UsageError"}
    pair.run("check(group, 'all_to_all', 'int8', 4, 'new', False)")


@pytest.mark.parametrize(
    "arguments",
    [
        (1, 1),
        (-1, 2),
        (0, 0),
        (0, 2000),
        ("0", 1),
        (0, 1, None, ""),
        (0, 1, None, "x" * 64),
        (1, 2),
    ],
)
def test_wrong_membership(device: rdmatensor.Device, arguments: tuple[Any, ...]) -> None:
    rank, size, *rest = arguments
    with pytest.raises(rdmatensor.UsageError):
        rdmatensor.Group(device, rank, size, *rest)


def test_members_disagree(pair: Team) -> None:
    """Each of them is told; what comes next works."""
    for call in (
        "group.all_reduce(np.zeros(4 + rank), timeout=20)",
        "group.all_reduce(np.zeros(100000 + rank), timeout=20)",
        "group.all_reduce(np.zeros(4, 'f4' if rank else 'i4'), timeout=20)",
        "group.all_reduce(np.zeros(4), op='max' if rank else 'min', timeout=20)",
        "(group.barrier if rank else lambda timeout: group.all_reduce(np.zeros(4)))(timeout=20)",
        "group.broadcast(np.zeros(4), root=1 - rank, timeout=1)",
        "group.all_reduce(np.zeros(4 * rank), timeout=20)",
    ):
        outcomes = pair.get(f"failure(lambda: {call})")
        assert [kind for kind, _ in outcomes] == ["UsageError"] * 2, (call, outcomes)
        pair.run("check(group, 'all_reduce', 'int32', 1000, 'new', False)")
    outcomes = pair.get("failure(lambda: group.start('all_reduce', np.zeros(4 + rank)).wait(20))")
    assert [kind for kind, _ in outcomes] == ["UsageError"] * 2, outcomes


@pytest.mark.parametrize("elements", [6, 0, 600000])
@pytest.mark.parametrize("kind", ["all_reduce", "reduce_scatter", "all_gather", "all_to_all"])
def test_shapes_are_compared(pair: Team, kind: str, elements: int) -> None:
    """As many elements, in other shapes: each is told both, and arrays with one detail go on."""
    pair.run("mine = f'[{n // 6},6]' if rank else f'[6,{n // 6}]'", n=elements)
    for call in (
        f"group.{kind}(np.zeros(n), timeout=20, detail=mine)",
        f"group.start('{kind}', np.zeros(n), timeout=20, detail=mine).wait(20)",
        f"group.start('{kind}', np.zeros(n), timeout=20, detail=None if rank else mine).wait(20)",
    ):
        outcomes = pair.get(f"failure(lambda: {call})")
        assert [kind for kind, _ in outcomes] == ["UsageError"] * 2, (call, outcomes)
        assert all(f"[6,{elements // 6}]" in text for _, text in outcomes), outcomes
        pair.run(f"group.{kind}(np.zeros(n), timeout=20, detail='the same')")
    assert all(
        f"[{elements // 6},6]" in text
        for _, text in pair.get("failure(lambda: group.barrier(detail=mine))")
    )
    pair.run("group.broadcast(np.zeros(n), timeout=20, detail='the same')")


# ---- joining ---------------------------------------------------------------------------------------


def test_members_may_come_late(team: Any) -> None:
    """In any order; what the first of them call already waits."""
    members = team(3)
    for peer, wait in zip(members.peers, (0.6, 0, 0.3), strict=True):
        peer.start(
            "time.sleep(wait)\n"
            "group = rdmatensor.Group(device, rank, size, root, timeout=20)\n"
            "check(group, 'all_reduce', 'int32', 1000, 'new', False)",
            wait=wait,
        )
    for peer in members.peers:
        peer.finish()


@pytest.mark.usefixtures("patient")
def test_missing_members_are_named(team: Any) -> None:
    members = team(2)
    members.run("size = 4")
    begin = time.monotonic()
    outcomes = members.get("failure(lambda: rdmatensor.Group(device, rank, 4, root, timeout=1))")
    assert time.monotonic() - begin < AT_ONCE
    assert {kind for kind, _ in outcomes} <= {"DeadlineExceeded", "ConnectionRefused"}
    kind, text = outcomes[0]
    assert kind == "DeadlineExceeded" and "2" in text and "3" in text, text
    members.run("size = 2")
    members.join("again").run("check(group, 'all_reduce', 'int32', 10, 'new', False)")


@pytest.mark.parametrize("ranks", [(0, 0, 1), (0, 1, 1)])
def test_two_members_with_one_rank(team: Any, ranks: tuple[int, ...]) -> None:
    members = team(3)
    members.run("mine = ranks[rank]", ranks=ranks)
    outcomes = members.get("failure(lambda: rdmatensor.Group(device, mine, 3, root, timeout=1))")
    kinds = [kind for kind, _ in outcomes]
    if ranks == (0, 1, 1):
        assert kinds == ["ConnectionRefused"] * 3, outcomes
        assert all("rank 1" in text for _, text in outcomes), outcomes
    else:  # two of rank 0 wait for others, each by itself
        assert set(kinds) <= {"ConnectionRefused", "DeadlineExceeded"}, outcomes
    members.join("again")


def test_members_differ_in_size(team: Any) -> None:
    members = team(2)
    outcomes = members.get(
        "failure(lambda: rdmatensor.Group(device, rank, 2 + rank, root, timeout=3))"
    )
    assert [kind for kind, _ in outcomes] == ["ConnectionRefused"] * 2, outcomes


def test_no_root(device: rdmatensor.Device) -> None:
    with pytest.raises(rdmatensor.UsageError, match="rank 0"):
        rdmatensor.Group(device, 1, 2, timeout=1)
    with pytest.raises(rdmatensor.ConnectionRefused):
        rdmatensor.Group(device, 1, 2, "127.0.0.1:1", timeout=1)


def test_names_are_unique(pair: Team) -> None:
    outcomes = pair.get("failure(lambda: rdmatensor.Group(device, rank, size, root, timeout=3))")
    assert {kind for kind, _ in outcomes} <= {"UsageError", "ConnectionRefused"}, outcomes
    pair.run("group.barrier(); group.close()")
    pair.join().run("check(group, 'all_reduce', 'int32', 10, 'new', False)")


# ---- failure ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [10, 1 << 20])
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


@pytest.mark.parametrize("count", [10, 1 << 20])
@pytest.mark.parametrize("registered", [False, True])
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


def test_cancelled_before_it_starts(pair: Team) -> None:
    first, second = pair.peers
    first.run("group.cancel(tag=9)")
    first.run(
        "time.sleep(0.2)"
    )  # most likely the other knows by now; the outcome is the same if not
    assert second.get("failure(lambda: group.barrier(tag=9))[0]") == "Cancelled"
    assert first.get("failure(lambda: group.barrier(tag=9))[0]") == "Cancelled"
    pair.run("check(group, 'all_reduce', 'int32', 1000, 'new', False)")


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


def test_started_operation_cancels_and_fails(pair: Team) -> None:
    first, second = pair.peers
    first.run("operation = group.start('all_reduce', np.zeros(10), timeout=20); operation.cancel()")
    assert first.get("failure(lambda: operation.wait(20))[0]") == "Cancelled"
    first.run("operation.cancel()")
    first.run("late = group.start('all_reduce', np.zeros(10), tag=1, timeout=0.2)")
    assert first.get("failure(lambda: late.wait(20))[0]") == "DeadlineExceeded"
    with pytest.raises(AssertionError):
        first.run("group.start('all_reduce', np.zeros(10), tag=2, timeout=20).wait(0.1)")
    second.run("group.start('all_reduce', np.zeros(10), tag=2, timeout=20).wait()")


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


def test_waiting_uses_no_cpu(pair: Team) -> None:
    first, second = pair.peers
    first.start("begin = time.process_time(); group.barrier(); used = time.process_time() - begin")
    # The delay is what the other waits for.
    second.run("time.sleep(1.5); group.barrier()")
    first.finish()
    assert first.get("used") < 0.75, "a member that waits for a late one sleeps most of the time"


# ---- the end ---------------------------------------------------------------------------------------


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


def test_closed_group(pair: Team) -> None:
    pair.run("group.barrier(); group.close(); group.close()")
    assert pair.get("group.closed") == [True, True]
    for call in (
        "group.barrier()",
        "group.all_reduce(np.zeros(3))",
        "group.info",
        "group.start('barrier')",
    ):
        assert {text[0] for text in pair.get(f"failure(lambda: {call})")} == {"UsageError"}


def test_close_ends_calls_of_other_threads(pair: Team) -> None:
    first, second = pair.peers
    first.run(
        """
        threading.Timer(0.3, lambda: group.close()).start()
        outcomes = in_threads([lambda tag=tag: group.barrier(tag=tag, timeout=60) for tag in range(3)])
        """
    )
    kinds = set(first.get("[type(each).__name__ for each in outcomes]"))
    assert kinds <= {"Cancelled", "UsageError", "DeviceError"}, kinds
    # The other member learns of it too.
    outcome = second.get("failure(lambda: group.barrier(tag=0, timeout=5))")
    assert outcome[0] in ("Cancelled", "ConnectionLost", "DeadlineExceeded"), outcome


def test_device_closes_its_groups(device: rdmatensor.Device) -> None:
    group = rdmatensor.Group(device, 0, 1)
    array = group.empty(100)
    array[:] = 7
    device.close()
    assert group.closed
    with pytest.raises(rdmatensor.UsageError, match="closed"):
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
    # Scratch that is kept for the next operations may come to it once.
    for (files, threads), (files_now, threads_now) in zip(before, pair.get(count), strict=True):
        assert files_now < files + 5 and threads_now <= threads + 1


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
