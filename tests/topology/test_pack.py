# SPDX-License-Identifier: Apache-2.0
"""Packings of spanning trees: they respect the links and reach the bounds that maximum flows prove."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator

import networkx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog
from scipy.sparse import lil_matrix

from rdmatensor import UsageError, topology
from rdmatensor.topology import Link, Member, Topology
from rdmatensor.topology.arborescence import minimum_arborescence
from rdmatensor.topology.pack import KINDS, SLACK, Packing, pack, plan
from support import WHOLE

# All connected parts of a DGX-1 (make test SUITE=topology), or every so many.
EVERY = int(os.environ.get("RDMATENSOR_TEST_EVERY_PART", "96"))


def carried(topology: Topology, packing: Packing) -> np.ndarray:
    """What each member sends to each other one."""
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


def most_filled(topology: Topology, load: np.ndarray) -> float:
    """How full the fullest link is if `load` takes the best paths, which only switches forward.

    A linear program: on each link there is a flow of each member's data. As much leaves a switch as enters
    it, and each other member gets its load.
    """
    size, nodes = topology.size, len(topology.capacity)
    sources, targets = np.nonzero(topology.capacity)
    links = len(sources)
    columns: list[tuple[int, int]] = []  # member, and a link that its data may take
    for member in range(size):
        forwards = (sources == member) | (sources >= size)
        columns += [
            (member, link) for link in np.flatnonzero(forwards & (targets != member)).tolist()
        ]
    many, scale = len(columns), topology.capacity.max()
    used = lil_matrix((links, many + 1))  # the last column is how full the fullest link is
    used[:, many] = -topology.capacity[sources, targets][:, None] / scale
    kept, wanted = lil_matrix((size * nodes, many + 1)), np.zeros(size * nodes)
    for number, (member, link) in enumerate(columns):
        used[link, number] = 1.0
        kept[member * nodes + targets[link], number] += 1.0
        if sources[link] >= size:
            kept[member * nodes + sources[link], number] -= 1.0
    for member in range(size):
        wanted[member * nodes : member * nodes + size] = load[member] / scale
    solved = linprog(
        np.append(np.zeros(many), 1.0),
        A_ub=used.tocsr(),
        b_ub=np.zeros(links),
        A_eq=kept.tocsr(),
        b_eq=wanted,
    )
    assert solved.success, solved.message
    return float(solved.fun)


def check(topology: Topology, packing: Packing, slack: float = SLACK) -> None:
    for tree in packing.trees:
        for node in range(topology.size):
            for _ in range(topology.size):
                node = tree.parents[node]
            assert node == tree.root, "all ways lead to the root"
    load = carried(topology, packing)
    if topology.switches:
        assert most_filled(topology, load) <= 1 + 1e-6
    else:
        assert (load <= topology.capacity * (1 + 1e-6) + 1).all()
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


@settings(max_examples=25 if WHOLE else 8)
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


@st.composite
def switched(draw: st.DrawFn) -> Topology:
    """Members at switches in a row, and some links between members; both directions are as wide."""
    size, switches = draw(st.integers(2, 6)), draw(st.integers(1, 3))
    width = st.integers(1, 9)
    names = [f"s{i}" for i in range(switches)]
    pairs = {(f"m{i}", draw(st.sampled_from(names))): draw(width) for i in range(size)}
    pairs |= {each: draw(width) for each in itertools.pairwise(names)}
    for one, other in itertools.combinations([f"m{i}" for i in range(size)], 2):
        if draw(st.booleans()):
            pairs[one, other] = draw(width)
    links = [Link(*ends, each * 1e8) for ends, each in pairs.items()]
    links += [Link(x.target, x.source, x.bandwidth) for x in links]
    members = tuple(Member(f"m{i}") for i in range(size))
    return Topology("switched", members, tuple(links), tuple(names))


@settings(max_examples=15 if WHOLE else 6)
@given(switched(), st.integers(0, 5))
def test_random_switches(graph: Topology, root: int) -> None:
    for kind in KINDS:
        check(graph, pack(graph, kind, root % graph.size))


def test_a_link_behind_a_switch_may_be_too_full() -> None:
    """What the check itself tells: two flows that share an uplink."""
    links = [Link(f"m{i}", f"s{i // 2}", 1e9) for i in range(4)] + [Link("s0", "s1", 1e9)]
    links += [Link(each.target, each.source, each.bandwidth) for each in links]
    hosts = Topology("hosts", tuple(Member(f"m{i}") for i in range(4)), tuple(links), ("s0", "s1"))
    load = np.zeros((4, 4))
    load[0, 2] = load[1, 3] = 1e9
    assert most_filled(hosts, load) == pytest.approx(2)
    load[1] = [0, 0, 5e8, 0]
    assert most_filled(hosts, load) == pytest.approx(1.5)


def partitions(items: list[int]) -> Iterator[list[list[int]]]:
    """All ways to put items into groups."""
    if not items:
        yield []
        return
    first, *rest = items
    for groups in partitions(rest):
        yield [[first], *groups]
        for number, group in enumerate(groups):
            yield [*groups[:number], [first, *group], *groups[number + 1 :]]


def partition_bound(weights: np.ndarray) -> float:
    """The most spanning trees without directions that fit into these weights (Tutte, Nash-Williams 1961).

    Each has an edge less than there are groups between the groups of any partition, at least.
    """
    best = np.inf
    for groups in partitions(list(range(len(weights)))):
        if len(groups) > 1:
            inside = sum(weights[np.ix_(each, each)].sum() for each in groups)
            best = min(best, (weights.sum() - inside) / 2 / (len(groups) - 1))
    return float(best)


@settings(max_examples=60)
@given(st.integers(2, 6), st.integers(0, 2**32 - 1), st.floats(0.3, 1))
def test_all_reduces_reach_the_partition_bound(size: int, seed: int, dense: float) -> None:
    """A tree takes as much of both directions of a link: the narrower one counts."""
    random = np.random.default_rng(seed)
    widths = random.integers(1, 10, (size, size)) * (random.random((size, size)) < dense) * 1e8
    np.fill_diagonal(widths, 0)
    links = [Link(f"m{i}", f"m{k}", widths[i, k]) for i, k in np.argwhere(widths).tolist()]
    graph = Topology("random", tuple(Member(f"m{i}") for i in range(size)), tuple(links))
    bound = partition_bound(np.minimum(widths, widths.T))
    if bound == 0:
        with pytest.raises(UsageError, match="the links do not lead"):
            pack(graph, "all_reduce")
        return
    packing = pack(graph, "all_reduce")
    check(graph, packing)
    assert packing.best == pytest.approx(bound, rel=1e-5)


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


def fat_tree(leaves: int, each: int) -> Topology:
    """Leaf switches with members, below one switch that has a quarter of their bandwidth."""
    members = tuple(Member(f"m{i}") for i in range(leaves * each))
    links = [Link(f"m{i}", f"s{i // each}", 12.5e9) for i in range(len(members))]
    links += [Link(f"s{i}", "core", 12.5e9 * each / 4) for i in range(leaves)]
    links += [Link(x.target, x.source, x.bandwidth) for x in links]
    return Topology("fat", members, tuple(links), (*(f"s{i}" for i in range(leaves)), "core"))


def test_many_members() -> None:
    """As many as a large job has; `make test SUITE=topology` plans for a fat tree too, which takes longer."""
    members = tuple(Member(f"m{i}") for i in range(64))
    pairs = itertools.permutations(members, 2)
    every = Topology("every pair", members, tuple(Link(a.name, b.name, 1e9) for a, b in pairs))
    for graph in (every, *[fat_tree(8, 8)][: EVERY == 1]):
        found = plan(graph, ["all_reduce", "broadcast"], roots=[0])
        print(f"64 members, {graph.name}: planned in {found.seconds:.1f} s")
        for packing in found.packings:
            assert packing.rate >= packing.best * (1 - SLACK - 1e-6)
            assert packing.best >= packing.bound * (1 - 6e-3)
        if graph is every:
            assert found.packings[0].bound == pytest.approx(32e9, rel=6e-3)


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
