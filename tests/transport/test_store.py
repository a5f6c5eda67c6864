# SPDX-License-Identifier: Apache-2.0
"""Stores: versions that are whole or not at all, slots, clocks, and members that die."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest

import rdmatensor
from support.peers import Peer
from support.waits import PATIENCE, until

pytestmark = pytest.mark.usefixtures("patient")

NBYTES = 256 << 10
OPEN = "store = rdmatensor.Store(device, rank, 2, nbytes, slot, name)"


@pytest.fixture
def store(device: rdmatensor.Device) -> Iterator[rdmatensor.Store]:
    with rdmatensor.Store(device, 0, 2, NBYTES, 64, "parameters") as store:
        yield store


@pytest.fixture
def briefly(transport: str) -> float:
    """The seconds to wait in vain: enough for a transfer, which takes long in a guest of the lab."""
    return 3.0 if transport == "verbs" else 0.5


@pytest.fixture
def member(peer: Peer, store: rdmatensor.Store, device: rdmatensor.Device) -> Peer:
    """Rank 1 in another process, connected both ways."""
    join(peer, store, device)
    return peer


def join(peer: Peer, store: rdmatensor.Store, device: rdmatensor.Device) -> None:
    peer.run(OPEN, rank=1, nbytes=NBYTES, slot=64, name="parameters")
    peer.run("store.connect(0, address, 60)", address=device.address)
    store.connect(1, peer.address, 60)
    until("it is not present", lambda: store.member(1).present)


def test_what_is_published_is_pulled(member: Peer, store: rdmatensor.Store) -> None:
    values = np.arange(NBYTES // 4, dtype="float32")
    assert store.publish(values, mark=7) == 1
    member.run(
        "found = np.zeros(nbytes // 4, 'float32'); pulled = store.pull(0, found)", nbytes=NBYTES
    )
    assert member.get("(pulled.version, pulled.mark)") == (1, 7)
    assert member.get("found.tobytes()") == values.tobytes()
    member.run("part = bytearray(8); store.pull(0, part, offset=4000)")
    assert member.get("bytes(part)") == values[1000:1002].tobytes()
    assert store.publish(-values, mark=8) == 2
    member.run("store.pull(0, part, offset=4000)")
    assert member.get("bytes(part)") == (-values[1000:1002]).tobytes()


HAMMER = """
def hammer():
    # Pauses of random length, from none on, so that readers of any speed meet a writer in any state.
    random, number = np.random.default_rng(1), 0
    block = np.empty(nbytes // 8, 'uint64')
    while not stop.is_set():
        for _ in range(random.integers(1, 40)):
            number += 1
            block[:] = number
            store.publish(block, number)
        time.sleep(random.exponential(pause))

stop = threading.Event()
store.publish(np.zeros(nbytes // 8, 'uint64'))
thread = threading.Thread(target=hammer)
thread.start()
"""


@pytest.mark.any_transport
def test_a_hammering_writer_never_yields_a_torn_version(
    member: Peer, store: rdmatensor.Store, transport: str
) -> None:
    """Each version consists of one number, which is also its mark."""
    wanted = 10 if transport == "verbs" else 100  # a pull takes long in a guest of the lab
    found = np.empty(NBYTES // 8, "uint64")
    marks: set[int] = set()
    repeats = 0
    begin = time.monotonic()
    member.run(HAMMER, nbytes=NBYTES, pause=0.01)
    # Until reads were repeated, which shows that they met writes: at once, but in a slow guest.
    while len(marks) < wanted or (repeats == 0 and time.monotonic() < begin + PATIENCE):
        pulled = store.pull(1, found, timeout=PATIENCE)
        assert found.min() == found.max() == pulled.mark == pulled.version - 1
        repeats += pulled.repeats
        marks.add(pulled.mark)
    assert repeats > 0
    member.run("stop.set(); thread.join()")


@pytest.mark.any_transport
def test_a_version_that_never_is_whole_is_an_error(
    member: Peer, store: rdmatensor.Store, briefly: float
) -> None:
    with pytest.raises(rdmatensor.DeadlineExceeded, match="has published nothing in store"):
        store.pull(1, bytearray(8), timeout=briefly)
    member.run(
        """
        store.publish(bytes(nbytes))
        # As if a whole version passed during each read.
        store._values[:256].view('uint64')[8] = 1000
        """,
        nbytes=NBYTES,
    )
    with pytest.raises(rdmatensor.DeadlineExceeded, match="let it publish less often"):
        store.pull(1, bytearray(8), timeout=briefly)


def test_pushes_wait_in_their_slot(member: Peer, store: rdmatensor.Store) -> None:
    assert store.take() is None
    assert member.get("store.push(0, b'one', 11)")
    arrival = store.take(PATIENCE)
    assert arrival is not None
    assert (arrival.rank, arrival.mark, bytes(arrival.data)) == (1, 11, b"one")
    # The slot is in use, so its sender is told, and nothing is overwritten.
    assert not member.get("store.push(0, b'two', 12)")
    assert bytes(arrival.data) == b"one"
    arrival.release()
    arrival.release()
    assert member.get("store.push(0, b'', 13)")
    with store.take(PATIENCE) as arrival:  # type: ignore[union-attr]
        assert (arrival.mark, bytes(arrival.data)) == (13, b"")
    with pytest.raises(rdmatensor.RegionError, match="do not fit into a slot of 64"):
        store.push(1, bytes(65))
    for number in range(50):
        pushed = member.get("store.push(0, number.to_bytes(8, 'little'), number)", number=number)
        with store.take(PATIENCE) as arrival:  # type: ignore[union-attr]
            assert pushed
            assert arrival.mark == int.from_bytes(bytes(arrival.data), "little") == number


@pytest.mark.any_transport
def test_clocks(member: Peer, store: rdmatensor.Store, briefly: float) -> None:
    with pytest.raises(rdmatensor.DeadlineExceeded, match=r"rank 1 .* is at clock 0 .* to 3"):
        store.wait_clocks(3, timeout=briefly)
    waiter = threading.Thread(target=store.wait_clocks, args=(3, PATIENCE))
    waiter.start()
    member.run("for clock in (1, 2, 3): store.set_clock(clock)")
    waiter.join(PATIENCE)
    assert not waiter.is_alive()
    assert store.member(1).clock == 3
    store.set_clock(5)
    with pytest.raises(rdmatensor.UsageError, match="cannot go back to 1"):
        store.set_clock(1)
    assert member.get("store.wait_clocks(5, 60) or store.member(0).clock") == 5


def test_a_killed_member_is_missed_by_its_calls_only_and_may_come_back(
    spawn: Callable[..., Peer], store: rdmatensor.Store, device: rdmatensor.Device
) -> None:
    doomed = spawn()
    join(doomed, store, device)
    doomed.run("store.publish(bytes(nbytes)); store.push(0, b'last words')", nbytes=NBYTES)
    first = store.member(1).generation
    arrival = store.take(PATIENCE)
    doomed.run(HAMMER, nbytes=NBYTES, pause=0.0)
    doomed.kill()
    until("it is not gone", lambda: store.member(1).gone)
    for call in (
        lambda: store.pull(1, bytearray(NBYTES), timeout=PATIENCE),
        lambda: store.push(1, b"hello"),
    ):
        with pytest.raises(rdmatensor.ConnectionLost):
            call()
    store.wait_clocks(9, timeout=PATIENCE)  # nobody else is there to be waited for
    store.publish(bytes(NBYTES))
    assert arrival is not None
    assert bytes(arrival.data) == b"last words"

    other = spawn()
    join(other, store, device)
    assert store.member(1).generation not in (0, first)
    assert not store.member(1).gone
    # The earlier member's push is still in the slot.
    assert not other.get("store.push(0, b'new')")
    arrival.release()
    assert other.get("store.push(0, b'new')")
    with store.take(PATIENCE) as arrival:  # type: ignore[union-attr]
        assert bytes(arrival.data) == b"new"
    other.run("store.publish(b'x' * nbytes)", nbytes=NBYTES)
    found = bytearray(NBYTES)
    store.pull(1, found, timeout=PATIENCE)
    assert found == b"x" * NBYTES


@pytest.mark.any_transport
def test_stores_that_do_not_fit_are_refused(
    peer: Peer, store: rdmatensor.Store, device: rdmatensor.Device, briefly: float
) -> None:
    with pytest.raises(rdmatensor.RegionError):
        store.connect(1, peer.address, timeout=briefly)
    for rank, nbytes, slot in ((1, 8, 64), (1, NBYTES, 128), (0, NBYTES, 64)):
        peer.run(OPEN, rank=rank, nbytes=nbytes, slot=slot, name="parameters")
        with pytest.raises(rdmatensor.UsageError):
            store.connect(1, peer.address, timeout=PATIENCE)
        peer.run("store.close()")
    for bad in (0, 2, 2**40):
        with pytest.raises(rdmatensor.UsageError):
            store.pull(bad, bytearray(8))
    with pytest.raises(rdmatensor.ConnectionFailure, match="not connected to rank 1"):
        store.pull(1, bytearray(8))
    with pytest.raises(rdmatensor.UsageError):
        store.publish(bytes(8))
    with pytest.raises(rdmatensor.UsageError):
        rdmatensor.Store(device, 0, 2, NBYTES, 64, "parameters")


@pytest.mark.any_transport
def test_closing_ends_waits(member: Peer, store: rdmatensor.Store) -> None:
    errors: list[BaseException] = []

    def wait() -> None:
        try:
            store.wait_clocks(1, PATIENCE)
        except rdmatensor.Closed as error:
            errors.append(error)

    waiter = threading.Thread(target=wait)
    waiter.start()
    store.close()
    waiter.join(PATIENCE)
    assert [each.status for each in errors] == ["CLOSED"]  # type: ignore[attr-defined]
    member.run(
        """
        try:
            store.pull(0, bytearray(8))
            raise AssertionError('it could be read')
        except rdmatensor.ConnectionLost:
            pass
        """
    )
