# SPDX-License-Identifier: Apache-2.0
"""Packings of spanning trees: they respect the links and reach the bounds that maximum flows prove."""

from __future__ import annotations

import itertools
import os

import networkx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rdmatensor import UsageError, topology
from rdmatensor.topology import Link, Member, Topology
from rdmatensor.topology.arborescence import minimum_arborescence
from rdmatensor.topology.pack import KINDS, SLACK, Packing, pack, plan

# All connected parts of a DGX-1 (make topology), or every so many.
EVERY = int(os.environ.get("RDMATENSOR_TEST_EVERY_PART", "24"))


def carried(topology: Topology, packing: Packing) -> np.ndarray:
    """What each member sends to each other one; only for topologies without switches."""
    load = np.zeros((topology.size, topology.size))
    for tree in packing.trees:
        for node, parent in enumerate(tree.parents):
            if node == tree.root:
                assert parent == node
                continue
            down = packing.kind != "reduce_scatter"
            load[(parent, node) if down else (node, parent)] += tree.rate
            if packing.kind == "all_reduce":
                load[node, parent] += tree.rate
    return load


def check(topology: Topology, packing: Packing, slack: float = SLACK) -> None:
    for tree in packing.trees:
        for node in range(topology.size):
            for _ in range(topology.size):
                node = tree.parents[node]
            assert node == tree.root, "all ways lead to the root"
    if not topology.switches:
        assert (carried(topology, packing) <= topology.capacity * (1 + 1e-6) + 1).all()
    per_root: dict[int, float] = {}
    for tree in packing.trees:
        root = 0 if packing.kind == "all_reduce" else tree.root
        per_root[root] = per_root.get(root, 0.0) + tree.rate
    assert min(per_root.values()) >= packing.rate * (1 - 1e-6) - len(packing.trees)
    assert packing.best == pytest.approx(packing.bound, rel=1e-4), "no tree is missing"
    assert packing.rate >= packing.best * (1 - slack - 1e-6)


@st.composite
def digraphs(draw: st.DrawFn) -> Topology:
    """Directed graphs in which every node reaches every other one: a circle, and more edges."""
    size = draw(st.integers(2, 7))
    width = st.integers(1, 9)
    edges = {(i, (i + 1) % size): draw(width) for i in range(size)}
    for pair in itertools.permutations(range(size), 2):
        if draw(st.booleans()):
            edges[pair] = draw(width)
    return Topology(
        "random",
        tuple(Member(f"m{i}") for i in range(size)),
        tuple(Link(f"m{i}", f"m{k}", each * 1e8) for (i, k), each in edges.items()),
    )


@settings(max_examples=25)
@given(digraphs(), st.integers(0, 6))
def test_random_digraphs(graph: Topology, root: int) -> None:
    for kind in ("broadcast", "all_gather", "reduce_scatter"):
        check(graph, pack(graph, kind, root % graph.size))
    both = Topology(
        "both ways",
        graph.members,
        graph.links + tuple(Link(x.target, x.source, x.bandwidth) for x in graph.links),
    )
    check(both, pack(both, "all_reduce"))


@settings(max_examples=60)
@given(st.integers(2, 6), st.integers(0, 2**32 - 1))
def test_cheapest_arborescences(size: int, seed: int) -> None:
    """Compared with all choices of parents: trees are those in which all ways lead to the root."""
    random = np.random.default_rng(seed)
    cost = random.integers(0, 9, (size, size)).astype(float)
    cost[random.random((size, size)) < 0.4] = np.inf
    np.fill_diagonal(cost, np.inf)
    choices = np.array([(0, *each) for each in itertools.product(range(size), repeat=size - 1)])
    above = choices
    for _ in range(3):
        above = np.take_along_axis(above, above, axis=1)
    costs = cost[choices[:, 1:], np.arange(1, size)].sum(axis=1)
    costs[above.any(axis=1)] = np.inf
    least = costs.min()
    parents = minimum_arborescence(cost, 0)
    if parents is None:
        assert least == np.inf
    else:
        assert (0, *parents[1:]) in set(map(tuple, choices[costs == least]))


@pytest.mark.parametrize("name", topology.recorded_names())
def test_recorded_topologies(name: str) -> None:
    recorded = topology.load(name)
    found = plan(recorded, roots=[0])
    for packing in found.packings:
        check(recorded, packing)
    assert [each.kind for each in found.packings] == list(KINDS)
    assert len(found.trees) == sum(len(each.trees) for each in found.packings)
    assert found.seconds < 60


def test_known_rates() -> None:
    """A slow link costs a ring of four no more than its own share."""
    slow = topology.load("slow-ring")
    assert pack(slow, "all_reduce").best == pytest.approx(3.25e9 / 3)
    assert pack(slow, "broadcast").best == pytest.approx(1.25e9)
    assert pack(topology.load("dgx1-v100"), "broadcast").rate == pytest.approx(150e9)
    dgx2 = pack(topology.load("dgx2"), "all_reduce")
    assert dgx2.best == pytest.approx(150e9 * 16 / 30), "what each member must send at least"


def test_every_connected_part_of_a_dgx1() -> None:
    """As much as the maximum flow, over at most one tree for each link that a GPU has."""
    dgx1 = topology.load("dgx1-v100")
    parts = [part for size in range(2, 9) for part in itertools.combinations(range(8), size)]
    tried = 0
    for part in parts[::-EVERY]:
        machine = dgx1.only(part)
        links = networkx.from_numpy_array(machine.capacity)
        if not networkx.is_connected(links):
            continue
        for root in range(machine.size) if machine.size == 8 else [0]:
            packing = pack(machine, "broadcast", root)
            assert packing.rate >= 0.99 * packing.bound, part
            assert len(packing.trees) <= 6, part
            tried += 1
    assert tried >= 8
    print(f"{tried} packings of parts of a DGX-1")


def test_unreachable_members() -> None:
    members = tuple(Member(name) for name in "abc")
    lame = Topology("lame", members, (Link("a", "b", 1e9), Link("b", "a", 1e9)))
    with pytest.raises(UsageError, match="the links do not lead from member 0"):
        pack(lame, "broadcast")
    with pytest.raises(UsageError, match="no trees for 'barrier'"):
        pack(lame, "barrier")
    with pytest.raises(UsageError, match="root 3 is no member"):
        pack(lame, "broadcast", 3)
    assert plan(lame.only([0])).trees == []
