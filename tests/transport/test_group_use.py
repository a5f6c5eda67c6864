# SPDX-License-Identifier: Apache-2.0
"""Groups: wrong use, and how members join."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

import rdmatensor
from support.waits import AT_ONCE
from transport.teams import Team

# How members agree is the same over every transport.
pytestmark = pytest.mark.any_transport

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
        (lambda g: g.all_reduce(np.zeros((8193, 4))[:, 1]), "C-contiguous"),
        (lambda g: g.all_reduce(np.zeros(8193), np.zeros(16386)[::2]), "C-contiguous"),
        (lambda g: g.all_reduce(np.zeros(4, complex)), "complex128"),
        (lambda g: g.all_reduce(np.zeros(4, bool)), "bool"),
        (lambda g: g.all_reduce(np.zeros(4, ">f4")), "byte order"),
        (lambda g: g.all_reduce(np.array([None])), "object"),
        (lambda g: g.all_reduce(read_only(), read_only()), "read-only"),
        (lambda g: g.broadcast(read_only()), "read-only"),
        (lambda g: g.all_reduce(np.zeros(4), np.zeros(5)), "5 elements"),
        (lambda g: g.all_reduce(np.zeros(4), np.zeros(4, "f4")), "float32"),
        (lambda g: g.all_gather(np.zeros(4), np.zeros(5)), "5 elements"),
        (lambda g: g.all_reduce(np.zeros(4), op="average"), "sum, product, min, max"),
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
        (lambda g: g.start("fold", np.zeros(4)), "all_gather"),
        (lambda g: g.start("all_reduce"), "got None"),
        (lambda g: g.choose("fold", 1), "all_gather"),
        (lambda g: g.choose("all_reduce", -1), "nbytes"),
        (lambda g: g.empty(-1), "dimension"),
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


def test_a_root_that_waits_for_nobody_learns_it_later(pair: Team) -> None:
    """Its small broadcast is complete before the other member calls something else."""
    pair.run("if rank == 0: group.broadcast(np.zeros(4), timeout=20)")
    pair.run("said = failure(lambda: group.all_gather(np.zeros(4), timeout=20)) if rank else None")
    kind, text = pair.get("said")[1]
    assert kind == "UsageError", text
    assert "all_gather of float64 [4] here" in text
    assert "broadcast of float64 [4] from member 0 at member 0" in text
    # The other member may have what it needs before the root hears of it.
    kind, text = pair.get("result_of(lambda: group.all_reduce(np.zeros(5), timeout=20))")[0]
    assert kind == "UsageError"
    assert "earlier operation" in text
    assert "all_gather of float64 [4] at member 1" in text
    pair.run("check(group, 'all_reduce', 'int32', 1000, 'new', False)")


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
