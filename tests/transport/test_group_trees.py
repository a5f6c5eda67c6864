# SPDX-License-Identifier: Apache-2.0
"""Collective operations along spanning trees: results, agreement, choice and failures."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from support.peers import Peer
from transport.teams import Team

CHAIN = """
chain = [Tree(kind, root, 10**9, tuple(max(i - 1, 0) if root == 0 else min(i + 1, root) for i in range(size)))
         for kind in ("all_reduce", "broadcast") for root in (0, size - 1)]
"""


@pytest.mark.any_transport
@pytest.mark.parametrize(
    ("size", "counts"),
    [(2, (1, 1001)), pytest.param(4, (2, 1001, 30011), marks=pytest.mark.any_transport)],
)
def test_every_kind(team: Any, size: int, counts: tuple[int, ...]) -> None:
    several = team(size).join()
    for seed in range(3):
        several.run(
            "group.use_trees(random_trees(size, seed)); check_kinds(group, counts, ('trees',))",
            seed=seed,
            counts=counts,
        )
    several.run(
        "check(group, 'all_reduce', 'float32', (1 << 20) + 1, 'in place', True, algorithm='trees')"
    )
    assert set(several.get("group.info.operations['trees'] > 50")) == {True}


@pytest.mark.any_transport
def test_the_same_bits_everywhere(team: Any) -> None:
    """Whole numbers give what every algorithm gives; others the same at all members, but in another order."""
    several = team(3).join()
    several.run("group.use_trees(random_trees(size, 7))")
    several.run(
        """
        whole = (gradients(group, 10007) * 1000).astype("int32")
        ring, trees = (group.all_reduce(whole, algorithm=each) for each in ("ring", "trees"))
        assert ring.tobytes() == trees.tobytes()
        ring, trees = (
            group.all_reduce(gradients(group, 10007), algorithm=each) for each in ("ring", "trees")
        )
        assert np.allclose(ring, trees, rtol=1e-5, atol=1e-6)
        """
    )
    assert len(set(several.get("trees.tobytes()"))) == 1


@pytest.mark.any_transport
def test_auto_takes_trees_where_they_pay(team: Any) -> None:
    several = team(3).join()
    several.run(CHAIN)
    large = "group.choose('all_reduce', 64 << 20)"
    several.run("near = [float(abs(i - k) == 1) for i in range(size) for k in range(size)]")
    several.run("group.use_trees(chain, near)")
    assert several.get(large) == ["trees"] * 3, "no link leads from one end to the other"
    several.run("fast = [0.001 * (i != k) for i in range(size) for k in range(size)]")
    several.run("group.use_trees(chain, fast)")
    assert "trees" not in several.get(large), "every pair is faster than the trees"
    several.run("group.use_trees([])")
    assert "trees" not in several.get(large)
    several.run("check_kinds(group, (1001,), ('trees',))")  # without trees: ring


@pytest.mark.any_transport
def test_trees_of_a_topology(team: Any) -> None:
    several = team(4).join()
    several.run("from rdmatensor import topology")
    several.run("trees = topology.use(group, 'slow-ring' if rank == 0 else 'unused')")
    kinds = several.get("sorted({tree.kind for tree in trees})")
    assert kinds == [["all_gather", "all_reduce", "broadcast", "reduce_scatter"]] * 4
    assert len(set(map(str, several.get("trees")))) == 1
    several.run("check_kinds(group, (30011,), ('trees',))")
    assert several.get("group.choose('all_reduce', 64 << 20)") == ["trees"] * 4
    several.run("outcome = failure(lambda: topology.use(group, 'dgx1-v100'))")
    for kind, text in several.get("outcome"):
        assert kind == "UsageError" and "8 members, the group 4" in text


@pytest.mark.any_transport
def test_members_must_agree(pair: Team) -> None:
    pair.run(CHAIN)
    first, second = pair.peers
    first.start("outcome = failure(lambda: group.use_trees(chain))")
    second.start("outcome = failure(lambda: group.use_trees(chain[1:]))")
    for peer in pair.peers:
        peer.finish()
        kind, text = peer.get("outcome")
        assert kind == "UsageError" and "4 trees" in text and "3 trees" in text
    pair.run("group.use_trees(chain)")
    pair.run("check_kinds(group, (1001,), ('trees',))")


@pytest.mark.any_transport
@pytest.mark.parametrize(
    ("change", "text"),
    [
        ("parents=(1, 0)", "do not lead every member to the root"),
        ("parents=(0, 9)", "do not lead every member to the root"),
        ("parents=(0,)", "1 parents: the group has 2 members"),
        ("root=2", "needs a root below 2"),
        ("rate=0", "a rate above 0"),
        ("rate=-1", "rate is -1: give a whole number"),
        ("kind='all_to_all'", "no trees for operations of kind"),
        ("kind='all_gather'", "only 1 of 2 members are roots"),
    ],
)
def test_malformed_trees(pair: Team, change: str, text: str) -> None:
    """The error comes at once, and the group stays usable."""
    pair.run(
        f"found = failure(lambda: group.use_trees([Tree('broadcast', 0, 1, (0, 0))._replace({change})]))"
    )
    for kind, said in pair.get("found"):
        assert kind == "UsageError" and text in said
    pair.run("check_kinds(group, (11,), ('auto',))")


@pytest.mark.any_transport
def test_killed_member(spawn: Callable[..., Peer]) -> None:
    """Members that have no link of the tree to the lost one learn of the loss, too."""
    several = Team([spawn() for _ in range(4)]).join()
    several.run(CHAIN)
    several.run("group.use_trees(chain)")
    several.run(
        """
        def play():
            while True:
                group.all_reduce(np.zeros(1 << 20, "float32"), algorithm="trees", timeout=100)
        """
    )
    *others, doomed = several.peers
    doomed.start("play()")
    for peer in others:
        peer.start("outcome = failure(play)")
    time.sleep(0.5)  # they are in the middle of some operation; any will do
    doomed.kill()
    for peer in others:
        peer.finish(60.0)
    assert [peer.get("outcome[0]") for peer in others] == ["ConnectionLost"] * 3
