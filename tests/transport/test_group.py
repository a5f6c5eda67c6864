# SPDX-License-Identifier: Apache-2.0
"""Groups of processes and their collective operations."""

from __future__ import annotations

from typing import Any

import pytest

from transport.teams import Team

# ---- results ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "counts"),
    [
        (2, (1001,)),
        pytest.param(2, (1,), marks=pytest.mark.any_transport),
        pytest.param(3, (1, 2, 1001), marks=pytest.mark.any_transport),
        pytest.param(4, (2, 1001), marks=pytest.mark.any_transport),
    ],
)
def test_every_kind_and_algorithm(team: Any, size: int, counts: tuple[int, ...]) -> None:
    members = team(size).join()
    members.run("check_kinds(group, counts, ALGORITHMS)", counts=counts)
    members.run("check_kinds(group, (30011,), ('ring', 'direct'))")


@pytest.mark.any_transport
def test_every_dtype_and_reduction(team: Any) -> None:
    team(3).join().run("check_dtypes(group, 1003)")


@pytest.mark.any_transport
def test_large_arrays(team: Any) -> None:
    members = team(2).join()
    for kind, registered in (("all_reduce", False), ("all_reduce", True), ("broadcast", False)):
        members.run(
            "check(group, kind, 'float32', (1 << 20) + 1, 'in place', registered)",
            kind=kind,
            registered=registered,
        )


MOVED = ["bool", "complex64", "complex128", ">f4", "S5", "datetime64[s]", "i4,f8", "float8_e4m3fn"]


@pytest.mark.any_transport
@pytest.mark.parametrize("dtype", MOVED)
def test_operations_that_move_take_any_dtype(pair: Team, dtype: str) -> None:
    pair.run(
        """
        import ml_dtypes
        kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
        nbytes = 6 * kind.itemsize
        both = [(np.arange(nbytes) % 2 + each).astype(np.uint8).view(kind) for each in range(2)]
        mine, other = both[rank], both[1 - rank]

        def same(got, *parts):
            assert got.dtype == kind and got.tobytes() == b"".join(each.tobytes() for each in parts)

        for _ in range(3):
            same(group.all_gather(mine), *both)
        same(group.start("all_gather", mine).result(20), *both)
        same(group.all_to_all(mine), *(each[rank * 3 : rank * 3 + 3] for each in both))
        room = mine.copy()
        same(group.broadcast(room, root=1), both[1])
        held = len(group._calls._slots["all_gather", np.dtype("u1"), "sum", "auto", 0])
        """,
        dtype=dtype,
    )
    assert pair.get("held") == [1, 1]
    pair.run(
        """
        for reduction in (group.all_reduce, group.reduce_scatter):
            try:
                reduction(mine)
                raise AssertionError("combined")
            except rdmatensor.UsageError as error:
                assert "cannot be combined" in str(error)
        """
    )


@pytest.mark.any_transport
def test_members_that_move_different_dtypes_disagree(pair: Team) -> None:
    pair.run(
        """
        try:
            group.all_gather(np.zeros(8, "bool" if rank else "int8"))
            raise AssertionError("gathered")
        except rdmatensor.UsageError as error:
            said = str(error)
        try:
            group.all_gather(np.zeros(2, "complex64" if rank else "datetime64[s]"))
            raise AssertionError("gathered")
        except rdmatensor.UsageError as error:
            told = str(error)
        """
    )
    for said, told in zip(pair.get("said"), pair.get("told"), strict=True):
        assert "int8" in said and "uint8" in said
        assert "dtype complex64" in told and "dtype datetime64[s]" in told


@pytest.mark.any_transport
def test_no_elements(pair: Team) -> None:
    pair.run("check_kinds(group, (0,), ('auto',))")


@pytest.mark.any_transport
def test_shapes_of_results(pair: Team) -> None:
    pair.run("array = np.ones((4, 3), 'float32')")
    assert pair.get("group.all_reduce(array).shape") == [(4, 3)] * 2
    assert pair.get("group.reduce_scatter(array).shape") == [(2, 3)] * 2
    assert pair.get("group.all_gather(array).shape") == [(8, 3)] * 2
    assert pair.get("group.all_to_all(array).shape") == [(4, 3)] * 2
    assert pair.get("group.all_gather(np.array(7, 'float32')).tolist()") == [[7.0, 7.0]] * 2
    assert pair.get("group.broadcast(array) is array") == [True] * 2


@pytest.mark.any_transport
@pytest.mark.parametrize("algorithm", ["flat", "halving", "ring", "direct"])
def test_all_members_have_the_same_bits(team: Any, algorithm: str) -> None:
    members = team(3).join()
    members.run(
        """
        right = sum(np.random.default_rng(each).standard_normal(10007) for each in range(size))
        result = group.all_reduce(gradients(group, 10007), algorithm=algorithm)
        assert np.allclose(result, right, rtol=1e-5, atol=1e-5)
        """,
        algorithm=algorithm,
    )
    assert len(set(members.get("result.tobytes()"))) == 1


@pytest.mark.any_transport
def test_barrier_waits_for_all(pair: Team) -> None:
    first, second = pair.peers
    first.start("group.barrier(); passed = time.monotonic()")
    # The delay is what the other waits for.
    second.run("time.sleep(0.5); called = time.monotonic(); group.barrier()")
    first.finish()
    assert first.get("passed") >= second.get("called"), "both clocks are the machine's"


def test_registered_arrays_move_without_copies(pair: Team) -> None:
    pair.run("for count in (10, 300000): check(group, 'all_reduce', 'float32', count, 'out', True)")
    assert pair.get("group.info.copies") == [0, 0]
    pair.run("array = device.allocate(300000, 'float32').array; group.all_reduce(array, array)")
    assert pair.get("group.info.copies") == [0, 0]


def test_counters_and_costs(pair: Team) -> None:
    pair.run("before = sum(group.info.operations.values())")
    pair.run("for _ in range(10): group.all_reduce(np.zeros(1000, 'int32'), algorithm='ring')")
    assert pair.get("sum(group.info.operations.values()) - before") == [10, 10]
    assert pair.get("group.info.operations['ring']") == [10, 10]
    for rank, info in enumerate(pair.get("group.info")):
        assert (info.name, info.rank, info.size, info.hosts) == ("world", rank, 2, 1)
        assert info.bytes["ring"] > 0
        assert info.latency_ns[0] > 0 and info.byte_ns[0] > 0 and info.reduce_byte_ns > 0
    chosen = pair.get("[group.choose('all_reduce', 1 << power) for power in range(0, 30, 3)]")
    assert chosen[0] == chosen[1], "all members choose the same"
    assert set(chosen[0]) <= {"flat", "halving", "ring", "direct", "hierarchical", "trees"}


# ---- several at once -------------------------------------------------------------------------------


@pytest.mark.any_transport
def test_several_groups_of_the_same_devices(team: Any) -> None:
    members = team(3).join("first")
    members.run("first = group")
    members.join("second")
    members.run(
        """
        calls = [lambda each=each: check_kinds(each, (101,), ("auto",)) for each in (first, group)]
        assert in_threads(calls if rank else calls[::-1]) == [None, None]
        first.close()
        check(group, "all_reduce", "int64", 100, "new", False)
        """
    )


@pytest.mark.any_transport
def test_groups_of_some_members(team: Any) -> None:
    """Ranks differ from group to group."""
    members = team(3).join()
    members.run(
        """
        root = group.all_gather(np.frombuffer(device.address.encode().ljust(64), "uint8"))
        root = bytes(root[-64:]).decode().strip()
        if rank:
            part = rdmatensor.Group(device, size - 1 - rank, 2, root, "part", timeout=20)
            check(part, "all_gather", "int32", 5, "new", False)
        check(group, "all_gather", "int32", 5, "new", False)
        """
    )


@pytest.mark.any_transport
def test_tags_permit_any_order_and_threads(team: Any) -> None:
    members = team(3).join()
    members.run(
        """
        arrays = [np.full(10 ** (tag % 6), tag, "int32") for tag in range(24)]
        order = np.random.default_rng(rank).permutation(24).tolist()
        calls = [lambda tag=tag: group.all_reduce(arrays[tag], tag=tag) for tag in order]
        sums = dict(zip(order, in_threads(calls)))
        """
    )
    right = (
        "all((sums[tag] == tag * size).all() and sums[tag].size == 10 ** (tag % 6) for tag in sums)"
    )
    assert members.get(right) == [True] * 3


def test_started_operations(pair: Team) -> None:
    pair.run(
        """
        arrays = [np.full(each * 997 + 1, each + rank, "float32") for each in range(40)]
        started = [group.start("all_reduce", each, each) for each in arrays]
        other = group.start("all_gather", np.array([rank]))
        group.barrier()
        for each in started:
            each.wait(20)
        other.wait(20)
        """
    )
    assert (
        pair.get("[array[-1] == 2 * each + 1 for each, array in enumerate(arrays)]")
        == [[True] * 40] * 2
    )
    assert pair.get("other.result().tolist()") == [[0, 1]] * 2
    assert pair.get("all(each.done() for each in started)") == [True, True]


@pytest.mark.any_transport
@pytest.mark.parametrize("kind", ["all_gather", "gather", "reduce_scatter"])
def test_the_array_as_a_result_that_does_not_fit(pair: Team, kind: str) -> None:
    """However a call is made: what a started operation wrote behind the array would be seen much later."""
    pair.run(
        f"""
        refused = []
        array, odd = np.ones(4), np.ones((4, 3))[:, 0]
        for call in (getattr(group, {kind!r}), lambda *of, **more: group.start({kind!r}, *of, **more)):
            for whose in (array, odd):
                try:
                    given = dict(root=rank) if {kind!r} == "gather" else {{}}
                    call(whose, out=whose, timeout=0.5, **given)
                except rdmatensor.UsageError as error:
                    refused.append("out has" in str(error))
        """
    )
    assert pair.get("refused") == [[True] * 4] * 2
    pair.run("assert group.all_reduce(np.ones(2)).tolist() == [2, 2]")


@pytest.mark.any_transport
def test_started_operations_keep_their_arrays(pair: Team) -> None:
    pair.run(
        """
        outs = [np.zeros(100000, "int64") for _ in range(30)]
        for turn, out in enumerate(outs):  # nobody else holds what they take and return
            group.start("all_reduce", np.full(100000, turn, "int64"), out, timeout=60)
        end = time.monotonic() + 50
        right = lambda: all((out == 2 * turn).all() for turn, out in enumerate(outs))
        while not right() and time.monotonic() < end:
            np.full(100000, -1, "int64")
        """
    )
    assert pair.get("right()") == [True] * 2


@pytest.mark.any_transport
def test_asyncio(pair: Team) -> None:
    pair.run(
        """
        import asyncio
        async def play():
            first = group.start("all_reduce", np.ones(10))
            second = group.start("all_reduce", np.ones(100000))
            return sum(each.sum() for each in await asyncio.gather(second, first))
        total = asyncio.run(asyncio.wait_for(play(), 20))
        """
    )
    assert pair.get("total") == [2 * 100010] * 2
