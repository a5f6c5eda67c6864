# SPDX-License-Identifier: Apache-2.0
"""What holds of every order that find_order proves, by graphs that hypothesis makes up."""

from __future__ import annotations

import random
from collections import defaultdict
from typing import Any, NamedTuple

from hypothesis import example, given, settings
from hypothesis import strategies as st

from rdmatensor.plan import Arc, Node, NodeFlag, Order, Use, find_order

# The same examples in every run: a failure is one of the change at hand.
check = settings(
    max_examples=100,
    derandomize=True,
    database=None,
)

# ---- Graphs ----------------------------------------------------------------------------------------


class Graph(NamedTuple):
    """Arcs go from lower to higher numbers. `hidden`: what nodes that block wait for besides."""

    nodes: list[Node]
    arcs: list[Arc]
    uses: list[Use]
    hidden: list[Arc]


def uses_of(nodes: list[Node], arcs: list[Arc], carries: set[Arc]) -> list[Use]:
    consumers: dict[tuple[int, int], list[int]] = defaultdict(list)
    for arc in arcs:
        if arc in carries and nodes[arc.source].task != nodes[arc.target].task:
            consumers[arc.source, nodes[arc.target].task].append(arc.target)
    return [Use(producer, targets) for (producer, _), targets in consumers.items()]


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Small and dense, over few tasks: most tensors have others on their link, before and after."""
    count, tasks = draw(st.integers(2, 14)), draw(st.sampled_from([2, 2, 3]))
    rare = [NodeFlag.BLOCKS, NodeFlag.LOOP, NodeFlag.ANY, NodeFlag.BRANCH]
    flag = st.sampled_from([0] * 12 + [NodeFlag.FREE] * 8 + rare)
    nodes = [Node(draw(st.integers(0, tasks - 1)), int(draw(flag))) for _ in range(count)]

    def some_arcs(most: int) -> list[Arc]:
        before = [draw(st.sets(st.integers(0, i - 1), max_size=most)) for i in range(1, count)]
        return [Arc(j, i) for i, found in enumerate(before, 1) for j in sorted(found)]

    arcs = some_arcs(3)
    # The others are control edges.
    carries = {arc for arc in arcs if draw(st.integers(0, 9)) > 0}
    hidden = [arc for arc in some_arcs(2) if nodes[arc.target].flags & NodeFlag.BLOCKS]
    return Graph(nodes, arcs, uses_of(nodes, arcs, carries), hidden)


def link_of(graph: Graph, use: Use) -> tuple[int, int]:
    return graph.nodes[use.producer].task, graph.nodes[use.consumers[0]].task


def surely_after(graph: Graph) -> list[set[int]]:
    """Of each node, those that run only after it did, itself included."""
    found: list[set[int]] = []
    for number, node in enumerate(graph.nodes):
        before = [found[arc.source] for arc in graph.arcs if arc.target == number]
        join = set.intersection if node.flags & NodeFlag.ANY else set.union
        found.append({number} | (join(*before) if before else set()))
    return [{n for n, known in enumerate(found) if i in known} for i in range(len(graph.nodes))]


def descendants(count: int, arcs: list[Arc]) -> list[set[int]]:
    """Of each node, itself included; from their definition, in no clever way."""
    after = [{node} for node in range(count)]
    for _ in range(count):
        for source, target in arcs:
            after[source] |= after[target]
    return after


def runs_to_the_end(graph: Graph, orders: list[Order]) -> bool:
    """Whether all nodes run when tensors of one link and readiness arrive only together."""
    groups: dict[Any, set[int]] = defaultdict(set)
    group_of: dict[tuple[int, int], Any] = {}
    for use, order in zip(graph.uses, orders, strict=True):
        key = (link_of(graph, use), order.ready) if order.ready is not None else use.producer
        groups[key].add(use.producer)
        for consumer in use.consumers:
            group_of[use.producer, consumer] = key
    needs: list[set[int]] = [set() for _ in graph.nodes]
    for arc in graph.arcs:
        needs[arc.target] |= groups[group_of[arc]] if arc in group_of else {arc.source}
    for arc in graph.hidden:
        needs[arc.target].add(arc.source)
    ran: set[int] = set()
    while more := {node for node in range(len(graph.nodes)) if needs[node] <= ran} - ran:
        ran |= more
    return len(ran) == len(graph.nodes)


# What takes no time may be ready at the same depth as what it needs.
BACK_AND_FORTH = Graph(
    [Node(0, NodeFlag.FREE), Node(1, NodeFlag.FREE), Node(0, NodeFlag.FREE), Node(1)],
    [Arc(0, 1), Arc(1, 2), Arc(2, 3)],
    [Use(0, [1]), Use(2, [3])],
    [],
)
# Node 2 waits for node 1, though no arc says so, and node 3 for node 2.
QUEUE = Graph(
    [Node(0), Node(1), Node(0, NodeFlag.BLOCKS | NodeFlag.FREE), Node(0), Node(1)],
    [Arc(0, 1), Arc(2, 3), Arc(3, 4)],
    [Use(0, [1]), Use(3, [4])],
    [Arc(1, 2)],
)


@check
@example(BACK_AND_FORTH)
@example(QUEUE)
@given(graphs())
def test_groups_never_wait_for_themselves(graph: Graph) -> None:
    assert runs_to_the_end(graph, find_order(graph.nodes, graph.arcs, graph.uses))


@check
@given(graphs())
def test_readiness_is_known_unless_something_may_wait(graph: Graph) -> None:
    after = descendants(len(graph.nodes), graph.arcs)
    waits = set().union(
        *(
            after[i]
            for i, n in enumerate(graph.nodes)
            if n.flags & (NodeFlag.BLOCKS | NodeFlag.LOOP)
        )
    )
    for use, order in zip(graph.uses, find_order(graph.nodes, graph.arcs, graph.uses), strict=True):
        assert (order.ready is None) == (use.producer in waits)


def longest_paths(graph: Graph) -> list[tuple[int, int]]:
    """Of each node, the most arcs between tasks and the most nodes that take time on a path to it."""
    found: list[tuple[int, int]] = []
    for number, node in enumerate(graph.nodes):
        before = [arc.source for arc in graph.arcs if arc.target == number]
        level = max((found[i][0] + (graph.nodes[i].task != node.task) for i in before), default=0)
        depth = max((found[i][1] for i in before), default=0)
        found.append((level, depth + (not node.flags & NodeFlag.FREE)))
    return found


@check
@given(graphs())
def test_readiness_is_level_and_depth(graph: Graph) -> None:
    paths = longest_paths(graph)
    orders = find_order(graph.nodes, graph.arcs, graph.uses)
    known = [
        (order.ready, paths[use.producer])
        for use, order in zip(graph.uses, orders, strict=True)
        if order.ready is not None
    ]
    numbers = {path: number for number, path in enumerate(sorted({path for _, path in known}))}
    assert known == [(numbers[path], path) for _, path in known]


# Node 3 may run, and node 4 send, before node 1 ran.
MERGE = Graph(
    [Node(0), Node(1), Node(1), Node(1, NodeFlag.ANY), Node(0), Node(1)],
    [Arc(0, 1), Arc(1, 3), Arc(2, 3), Arc(3, 4), Arc(4, 5)],
    [Use(0, [1]), Use(4, [5])],
    [],
)


@check
@example(MERGE)
@given(graphs())
def test_lifetimes_are_proven_and_tight(graph: Graph) -> None:
    after = surely_after(graph)
    paths = longest_paths(graph)
    looping = {i for i, node in enumerate(graph.nodes) if node.flags & NodeFlag.LOOP}
    orders = find_order(graph.nodes, graph.arcs, graph.uses)
    for use, order in zip(graph.uses, orders, strict=True):
        assert order.first == (0 if use.producer in looping else paths[use.producer][0])
        others = [
            (later.first, all(other.producer in after[node] for node in use.consumers))
            for other, later in zip(graph.uses, orders, strict=True)
            if link_of(graph, other) == link_of(graph, use)
        ]
        if looping & {use.producer, *use.consumers}:
            assert order.last is None
            continue
        unproven = [first for first, proven in others if not proven]
        assert order.last == max([order.first, *unproven])


@check
@given(graphs(), st.randoms())
def test_order_does_not_depend_on_numbers(graph: Graph, rng: random.Random) -> None:
    number = rng.sample(range(len(graph.nodes)), len(graph.nodes))
    task = rng.sample(range(100), 3)
    nodes = [Node(0)] * len(graph.nodes)
    for old, node in enumerate(graph.nodes):
        nodes[number[old]] = Node(task[node.task], node.flags)
    arcs = [Arc(number[arc.source], number[arc.target]) for arc in graph.arcs]
    rng.shuffle(arcs)
    positions = rng.sample(range(len(graph.uses)), len(graph.uses))
    uses = [
        Use(number[graph.uses[i].producer], [number[node] for node in graph.uses[i].consumers])
        for i in positions
    ]
    before = find_order(graph.nodes, graph.arcs, graph.uses)
    assert find_order(nodes, arcs, uses) == [before[i] for i in positions]


@check
@given(graphs(), st.integers(0, 13), st.integers(0, 13))
def test_cycles_are_loops(graph: Graph, source: int, target: int) -> None:
    source, target = source % len(graph.nodes), target % len(graph.nodes)
    arcs = [*graph.arcs, Arc(max(source, target), min(source, target))]
    after = descendants(len(graph.nodes), arcs)
    cycle = {n for n in range(len(graph.nodes)) if any(n in after[t] for s, t in arcs if s == n)}
    behind = set().union(*(after[node] for node in cycle))
    for use, order in zip(graph.uses, find_order(graph.nodes, arcs, graph.uses), strict=True):
        if use.producer in behind:
            assert order[:3] == (None, 0, None)
