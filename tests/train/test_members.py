# SPDX-License-Identifier: Apache-2.0
"""Members of a training that waits for nobody, in one process, so that each moment can be chosen."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from functools import partial
from typing import Any

import numpy as np
import pytest

import rdmatensor
import rdmatensor.train as rt
from rdmatensor.train.run.membership import Membership
from rdmatensor.train.sync.gossip import weight_of
from rdmatensor.train.sync.members import Members
from support.waits import PATIENCE, until

Open = Callable[[int], Membership]


@pytest.fixture
def place() -> Iterator[Open]:
    """Makes the place of one of two processes; each sees the addresses of those that were made before."""
    with ExitStack() as stack:
        devices: list[rdmatensor.Device] = [
            stack.enter_context(rdmatensor.Device(f"rank {rank}")) for rank in range(2)
        ]

        def make(rank: int) -> Membership:
            run = Membership()
            run.rank, run.size, run.timeout, run.device = rank, 2, PATIENCE, devices[rank]
            run.addresses = [device.address for device in devices]
            return run

        yield make


@pytest.fixture
def other(place: Open) -> Iterator[rdmatensor.Store]:
    """The store of rank 1, which connects to nobody."""
    run = place(1)
    assert run.device is not None
    with rdmatensor.Store(run.device, 1, 2, 0, 4096, run.name_of_next_store()) as store:
        yield store


def test_a_shortage_does_not_end_the_search(place: Open, other: rdmatensor.Store) -> None:
    """A process that was lost is reached again although an attempt found no memory."""
    with closing(Members(place(0), 0, 4096)) as members:
        connect, short = members.store.connect, [True]

        def fails_once(*arguments: Any) -> None:
            if short.pop() if short else False:
                raise rdmatensor.DeviceError("no memory left", "NO_MEMORY")
            connect(*arguments)

        members.store.connect = fails_once  # type: ignore
        members._lose(1)
        until("rank 1 was not reached", lambda: members.reachable == [1])
        assert not short


def test_who_comes_back_waits_for_one_that_is_slow(
    place: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody answers at first, as when they are stopped for seconds: they have not ended."""
    there = place(1)
    assert there.device is not None
    opened = partial(rdmatensor.Store, there.device, 1, 2, 0, 4096, there.name_of_next_store())
    with ExitStack() as stack:

        class Early(rdmatensor.Store):
            def connect(self, rank: int, address: str, timeout: float | None = None) -> None:
                try:
                    super().connect(rank, address, 0.1)
                except rdmatensor.RegionError:
                    stack.enter_context(opened())
                    raise

        monkeypatch.setattr("rdmatensor.train.sync.members.Store", Early)
        with closing(Members(place(0), 0, 4096)) as members:
            assert members.reachable == [1]


def test_who_comes_back_says_that_nobody_is_there(place: Open) -> None:
    run = place(0)
    run.timeout = 0.1
    with pytest.raises(
        rdmatensor.ConnectionLost, match=r"none of the others within 0.1 s \(.*store"
    ):
        Members(run, 0, 4096)


def test_whoever_hears_nothing_trains_alone(place: Open, other: rdmatensor.Store) -> None:
    """SGP at a process that sends and gets nothing: its weight falls, and its steps stay as long."""
    target = np.linspace(1, 2, 1024, dtype="f")
    x, alone = np.zeros(1024, "f"), np.zeros(1024, "f")
    sync = rt.sync.SGP()
    sync.begin(place(0), x)  # type: ignore[arg-type]
    sent = 0.0
    with closing(sync):
        for step in range(1, 301):
            x += 0.01 * (target - x)
            alone += 0.01 * (target - alone)
            held = sync.weight
            sync.exchange(x, step, 0.01)
            if sync.weight == held:
                continue  # it keeps the rest
            arrival = other.take(PATIENCE)
            assert arrival is not None
            sent += weight_of(arrival.mark)
            arrival.release()
        assert 0 < sync.weight < 1e-5
        assert sync.weight + sent == 1
    np.testing.assert_allclose(x, alone, rtol=1e-4)


def test_a_failed_transfer_leaves_sum_and_weight(place: Open, other: rdmatensor.Store) -> None:
    """SGP goes on after an exchange that raised, as if it had sent nothing."""
    sync, x = rt.sync.SGP(), np.ones(1024, "f")
    sync.begin(place(0), x)  # type: ignore[arg-type]
    with closing(sync):
        push = sync.members.push

        def fails(*_: Any) -> bool:
            raise rdmatensor.DeviceError("no more memory can be pinned", "LIMIT")

        sync.members.push = fails  # type: ignore
        x += 1
        with pytest.raises(rdmatensor.DeviceError, match="pinned"):
            sync.exchange(x, 1, 0.1)
        sync.members.push = push  # type: ignore
        x += 1
        sync.exchange(x, 2, 0.1)
        assert sync.weight == 0.5
        np.testing.assert_array_equal(x, 3)


def test_what_a_lost_owner_has_not_merged_is_sent_again(place: Open) -> None:
    """Decoupled, whose owner of the second half has lost a message."""
    run = place(1)
    assert run.device is not None
    half = 512 * 4
    with rdmatensor.Store(run.device, 1, 2, 3 * 8 + half, half, run.name_of_next_store()) as owner:
        owner.publish(np.zeros(3 * 8 + half, np.uint8))
        sync, x = rt.sync.Decoupled(period=2), np.zeros(1024, "f")
        sync.begin(place(0), x)  # type: ignore[arg-type]
        with closing(sync):
            for step in (2, 3, 4):
                x += 1
                sync.exchange(x, step, 0.1)
                if step == 3:  # nothing was merged, so nothing is sent
                    assert owner.take() is None
                    sync.members.losses[1] += 1
                else:
                    arrival = owner.take(PATIENCE)
                    assert arrival is not None
                    assert (arrival.data.view("f") == (-1 if step == 2 else -3)).all()
                    arrival.release()
