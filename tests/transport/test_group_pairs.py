# SPDX-License-Identifier: Apache-2.0
"""Sends and receives, rooted operations, unequal parts and groups of some members."""

from __future__ import annotations

from typing import Any

import pytest

from transport.teams import Team


def test_sends_and_receives(team: Any) -> None:
    members = team(3).join()
    members.run(
        """
        def data(who, count, dtype="f4"):
            return (np.arange(count) % 100 + who).astype(dtype)

        right, left = (rank + 1) % size, (rank - 1) % size
        for count in (0, 1, 1000, 50_001):
            sent = group.start("send", data(rank, count), root=right)
            got = np.empty(count, "f4")
            assert group.receive(got, left, timeout=20) == left
            assert (got == data(left, count)).all()
            sent.wait(20)
        # By tag, in the order of sending; from any member.
        if rank:
            for k in range(5):
                group.send(data(10 * rank + k, 3), 0, tag=k % 2)
        else:
            for source, tag, wanted in ((1, 1, (1, 3)), (2, 0, (0, 2, 4))):
                for k in wanted:
                    group.receive(got := np.empty(3, "f4"), source, tag, timeout=20)
                    assert (got == data(10 * source + k, 3)).all()
            rest = {1: [0, 2, 4], 2: [1, 3]}
            operation = group.start("receive", got := np.empty(3, "f4"), root=None, tag=0)
            assert operation.result(20) is got and operation.source == 1
            assert (got == data(10 + rest[1].pop(0), 3)).all()
            while rest[1]:
                source = group.receive(got := np.empty(3, "f4"), tag=0, timeout=20)
                assert (got == data(10 * source + rest[source].pop(0), 3)).all()
            while rest[2]:
                source = group.receive(got := np.empty(3, "f4"), tag=1, timeout=20)
                assert (got == data(10 * source + rest[source].pop(0), 3)).all()
        """
    )


@pytest.mark.any_transport
def test_pairs_take_any_dtype_and_disagree(pair: Team) -> None:
    pair.run(
        """
        numbers = (np.arange(12) % 5).astype("c8")
        if rank == 0:
            group.send(numbers, 1)
            group.send(numbers > 2, 1)
            outcome = None  # of the message, or of what follows, by when it learns of the disagreement
            for act in (lambda: group.send(numbers[:3], 1), lambda: group.barrier(timeout=20)):
                try:
                    act()
                except rdmatensor.UsageError as error:
                    outcome = outcome or ("UsageError", str(error))
        else:
            group.receive(got := np.empty(12, "c8"), 0, timeout=20)
            assert (got == numbers).all()
            group.receive(got := np.empty(12, "?"), 0, timeout=20)
            assert (got == (numbers.real > 2)).all()
            outcome = failure(lambda: group.receive(np.empty(4, "c8"), 0, timeout=20))
            try:
                group.barrier(timeout=20)
            except rdmatensor.UsageError:
                pass  # it fails here too, unless it was complete when the other member learned of it
        """.replace("numbers > 2", "numbers.real > 2")
    )
    assert pair.get("outcome[0]") == ["UsageError", "UsageError"]
    pair.run("group.barrier(timeout=20)")
    pair.run("outcome = failure(lambda: group.send(numbers, rank))")
    assert [kind for kind, _ in pair.get("outcome")] == ["UsageError"] * 2


@pytest.mark.any_transport
def test_started_messages_leave_the_order_of_operations_alone(team: Any) -> None:
    """Members start different numbers of messages, and then the same operation."""
    three = team(3).join()
    three.run(
        """
        if rank == 0:
            got = np.empty((2, 3))
            for row, source in zip(got, (1, 2)):
                group.start("receive", row, root=source, timeout=20).wait(20)
            assert got.tolist() == [[1.0] * 3, [2.0] * 3]
        else:
            group.start("send", np.full(3, float(rank)), root=0, timeout=20).wait(20)
        total = group.start("all_reduce", np.ones(3), timeout=20).result(20)
        assert total.tolist() == [3.0] * 3
        """
    )


@pytest.mark.any_transport
def test_receives_end(pair: Team) -> None:
    pair.run("outcome = failure(lambda: group.receive(np.empty(3), timeout=0.05))")
    assert all(kind == "DeadlineExceeded" for kind, _ in pair.get("outcome"))
    pair.run(
        """
        operation = group.start("receive", np.empty(3), root=None)
        operation.cancel()
        outcome = failure(lambda: operation.wait(20))
        """
    )
    assert all(kind == "Cancelled" for kind, _ in pair.get("outcome"))


@pytest.mark.any_transport
def test_rooted(team: Any) -> None:
    team(3).join().run(
        """
        def rows(who, count=2):
            return np.arange(count * 3, dtype="i4").reshape(count, 3) + 100 * who

        every = np.concatenate([rows(each) for each in range(size)])
        for root in range(size):
            for count in (1, 1000):
                gathered = group.gather(rows(rank), root)
                assert (gathered is None) == (rank != root)
                assert rank != root or (gathered == every).all()
                part = group.scatter(every if rank == root else None, root, out=np.empty((2, 3), "i4"))
                assert (part == rows(rank)).all()
                total = group.reduce(np.full(count, rank, "f8"), root, op="sum")
                assert rank != root or (total == 3).all()
                got = group.start("reduce", np.full(count, rank + 1), root=root, op="xor").result(20)
                assert got is None if rank != root else (got == 1 ^ 2 ^ 3).all()
                started = group.start("gather", rows(rank), root=root).result(20)
                assert rank != root or (started == every).all()
                room = np.empty((2, 3), "i4")
                group.start("scatter", every if rank == root else None, room, root=root).wait(20)
                assert (room == rows(rank)).all()
        outcome = failure(lambda: group.scatter(None, 0) if rank else group.scatter(every[:4]))
        """
    )


@pytest.mark.any_transport
@pytest.mark.parametrize("dtype", ["f4", "c16"])
def test_unequal_parts(team: Any, dtype: str) -> None:
    team(3).join().run(
        """
        counts = [2, 0, 3]
        before = [0, 2, 2, 5]
        whole = (np.arange(10) + 1).reshape(5, 2).astype(dtype)
        mine = whole[before[rank] : before[rank + 1]].copy()
        assert (group.all_gather(mine, counts=counts) == whole).all()
        assert (group.start("all_gather", mine, counts=counts).result(20) == whole).all()
        if dtype == "f4":
            assert (group.reduce_scatter(whole, counts=counts) == 3 * mine).all()
        gathered = group.gather(mine, 1, counts=counts)
        assert rank != 1 or (gathered == whole).all()
        part = group.scatter(whole if rank == 2 else None, 2, out=np.empty_like(mine), counts=counts)
        assert (part == mine).all()
        # Each sends as many rows to a member as that one's rank.
        rows = np.concatenate([np.full((to, 2), 10 * rank + to) for to in range(size)]).astype(dtype)
        got = group.all_to_all(rows, counts=range(size), receive_counts=[rank] * size)
        wanted = np.concatenate([np.full((rank, 2), 10 * each + rank) for each in range(size)])
        assert got.dtype == dtype and (got == wanted).all()
        outcome = [
            failure(lambda: group.all_gather(mine, counts=[1, 2])),
            failure(lambda: group.all_gather(np.ones((9, 2), dtype), counts=counts)),
            failure(lambda: group.all_to_all(rows, counts=[1, 1, 1])),
        ]
        assert [kind for kind, _ in outcome] == ["UsageError"] * 3
        """,
        dtype=dtype,
    )


@pytest.mark.any_transport
def test_scaled_sums(pair: Team) -> None:
    pair.run(
        """
        assert (group.all_reduce(np.full(9, 2.0), op="scaled_sum", factor=0.25) == 1).all()
        assert (group.all_reduce(np.full(9, 2.0)) == 4).all()
        outcome = [
            failure(lambda: group.all_reduce(np.ones(2), op="scaled_sum")),
            failure(lambda: group.all_reduce(np.ones(2), factor=2.0)),
            failure(lambda: group.all_reduce(np.ones(2, int), op="scaled_sum", factor=2.0)),
            failure(lambda: group.all_reduce(np.ones(2), op="and")),
        ]
        assert [kind for kind, _ in outcome] == ["UsageError"] * 4
        """
    )


@pytest.mark.any_transport
def test_split(team: Any) -> None:
    members = team(3).join()
    members.run(
        """
        if rank != 1:
            for again in range(3):
                with group.split([2, 0], "ends", timeout=20) as part:
                    assert (part.rank, part.size) == (int(rank == 0), 2)
                    assert (part.all_reduce(np.ones(5)) == 2).all()
                    assert (part.all_gather(np.array([rank])) == [2, 0]).all()
        assert (group.all_reduce(np.ones(5), timeout=20) == 3).all()
        outcome = failure(lambda: group.split([[0, 1, 2], [0, 2]][rank == 2], "other", timeout=20))
        """
    )
    assert [kind for kind, _ in members.get("outcome")] == ["UsageError"] * 3
    members.run(
        """
        part = group.split([0, 1, 2], "rest", timeout=20)
        group.close()
        assert (part.all_reduce(np.ones(5), timeout=20) == 3).all()
        part.close()
        """
    )
