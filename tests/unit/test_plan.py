# SPDX-License-Identifier: Apache-2.0
"""What holds of every plan, by edges that hypothesis makes up; and the binding."""

from __future__ import annotations

import random
from itertools import combinations, pairwise
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rdmatensor
from rdmatensor.plan import (
    Arc,
    Edge,
    EdgeFlag,
    Link,
    Node,
    Options,
    Order,
    Placement,
    Plan,
    PlanClass,
    Reason,
    Ring,
    Use,
    edge_hash,
    find_order,
    make,
)

# The same examples in every run: a failure is one of the change at hand.
check = settings(
    max_examples=100,
    derandomize=True,
    database=None,
)

# ---- Plans -----------------------------------------------------------------------------------------

TASKS = 3


def orders() -> st.SearchStrategy[Order]:
    return st.tuples(
        st.none() | st.integers(0, 1), st.integers(0, 6), st.none() | st.integers(0, 2)
    ).map(lambda t: Order(t[0], t[1], None if t[2] is None else t[1] + t[2]))


def edges() -> st.SearchStrategy[list[Edge]]:
    """Most of them on one link, most of them static."""
    dim = st.integers(0, 80) | st.none() | st.sampled_from([1, 2**20, 2**40, 2**63 - 1])
    plain = st.lists(st.integers(1, 80), max_size=2)
    edge = st.builds(
        Edge,
        name=st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=2),
        source=st.sampled_from([0, 0, 0, 0, 1, 2]),
        destination=st.sampled_from([1, 1, 1, 1, 0, 2]),
        dtype=st.integers(0, 20),
        element_size=st.sampled_from([4] * 8 + [0, 1, 8]),
        shape=st.one_of(plain, plain, plain, plain, st.none(), st.lists(dim, max_size=3)),
        flags=st.sampled_from([0] * 6 + [int(EdgeFlag.LOOP), int(EdgeFlag.DEVICE_MEMORY)]),
        order=orders(),
    )
    return st.lists(edge, max_size=30, unique_by=lambda e: (e.source, e.destination, e.name))


def options() -> st.SearchStrategy[Options]:
    budget = st.integers(0, 100_000) | st.sampled_from([0, 2**40, 2**64 - 1])
    return st.builds(
        Options,
        slots=st.integers(1, 64) | st.just(2),
        loop_slots=st.integers(1, 64) | st.just(4),
        batch=st.sampled_from([0, 0, 1, 32, 2**64 - 1]),
        fuse_bytes=st.sampled_from([0, 64, 4096, 2**64 - 1]),
        fuse_group_bytes=st.sampled_from([0, 100, 1000, 65536, 2**64 - 1]),
        budgets=st.none() | st.lists(budget, min_size=TASKS, max_size=TASKS),
    )


class Member(NamedTuple):
    edge: Edge
    place: Placement


def by_link(given_edges: list[Edge], plan: Plan) -> list[tuple[Link, list[Ring], list[Member]]]:
    members = [Member(*pair) for pair in zip(given_edges, plan.places, strict=True)]
    return [
        (
            link,
            rings,
            [m for m in members if (m.edge.source, m.edge.destination) == link[:2]],
        )
        for link, rings in zip(plan.links, plan.rings, strict=True)
    ]


def disjoint(spans: list[tuple[int, int]]) -> bool:
    """Of (begin, end) pairs."""
    spans = sorted(spans)
    return all(a[1] <= b[0] for a, b in pairwise(spans))


def rounded(count: int) -> int:
    return -(-count // 64) * 64


def follows(late: Edge, early: Edge) -> bool:
    return early.order.last is not None and late.order.first > early.order.last


def expect_sound(given_edges: list[Edge], chosen: Options, plan: Plan) -> None:
    """Rings never overlap, nor do members of a group, nor the lives of others that share a ring."""
    links = by_link(given_edges, plan)
    assert sum(len(members) for _, _, members in links) == len(given_edges)
    for link, rings, members in links:
        assert disjoint([(r.offset, r.offset + r.stride * r.slots) for r in rings])
        assert link.bytes == sum(ring.stride * ring.slots for ring in rings)
        assert len(rings) == link.ring_count
        assert {m.place.group for m in members} - {None} == set(range(link.group_count))
        expect_placed(members)
        for number, ring in enumerate(rings):
            inside = [m for m in members if m.place.ring == number]
            assert ring.offset % 64 == ring.stride % 64 == 0
            assert ring.offset + ring.stride * ring.slots <= link.bytes
            assert len(inside) == ring.members > 0
            if inside[0].place.group is None:
                expect_taking_turns(inside, ring, chosen)
            else:
                expect_group(inside, ring, chosen)


def expect_placed(members: list[Member]) -> None:
    for _, place in members:
        placed = place.plan_class in (PlanClass.STATIC, PlanClass.BOUNDED) and place.bytes > 0
        assert (place.ring is not None) == placed
        assert place.offset % 64 == 0
        assert (place.reason == Reason.NONE) == (place.plan_class == PlanClass.STATIC)


def expect_taking_turns(inside: list[Member], ring: Ring, chosen: Options) -> None:
    assert all(m.place.group is None and m.place.offset == 0 for m in inside)
    assert ring.stride == max(rounded(m.place.bytes) for m in inside)
    loop = bool(inside[0].edge.flags & EdgeFlag.LOOP)
    assert ring.slots == (chosen.loop_slots if loop else chosen.slots)
    for a, b in combinations([m.edge for m in inside], 2):
        assert follows(a, b) or follows(b, a)
        assert not (a.flags | b.flags) & EdgeFlag.LOOP


def expect_group(inside: list[Member], ring: Ring, chosen: Options) -> None:
    assert len({m.place.group for m in inside}) == 1
    assert 2 <= len(inside) <= 64
    assert len({m.edge.order.ready for m in inside}) == 1
    assert inside[0].edge.order.ready is not None
    assert not any(m.edge.flags & EdgeFlag.LOOP for m in inside)
    assert all(0 < m.place.bytes <= chosen.fuse_bytes for m in inside)
    assert {m.place.plan_class for m in inside} == {PlanClass.STATIC}
    assert ring.stride <= chosen.fuse_group_bytes
    assert ring.slots == chosen.slots
    ends = [(m.place.offset, m.place.offset + m.place.bytes) for m in inside]
    assert disjoint(ends)
    assert max(end for _, end in ends) <= ring.stride
    ordered = sorted(inside, key=lambda m: m.edge.name.encode())
    assert [m.place.offset for m in ordered] == sorted(m.place.offset for m in inside)


@check
@given(edges(), options())
def test_places_are_sound(given_edges: list[Edge], chosen: Options) -> None:
    expect_sound(given_edges, chosen, make(given_edges, TASKS, chosen))


def many_edges(rng: random.Random, count: int, levels: int) -> list[Edge]:
    """Of one link, with more levels than lifetimes are told apart by."""
    found = []
    for number in range(count):
        first = rng.randrange(levels)
        last = first + rng.randrange(1 + levels // 4) if rng.random() < 0.9 else None
        order = Order(rng.choice([None, 0, 1, 2]), first, last)
        found.append(Edge(f"e{number}", 0, 1, 1, 4, (rng.randrange(1, 5000),), 0, order))
    return found


@settings(check, max_examples=12)
@given(st.integers(0, 2**32), st.sampled_from([1, 2, 8, 64, 65, 1000]))
def test_large_links_are_sound(seed: int, levels: int) -> None:
    rng = random.Random(seed)
    given_edges = many_edges(rng, 400, levels)
    chosen = Options(budgets=rng.choice([None, [0, 1_000_000]]))
    expect_sound(given_edges, chosen, make(given_edges, 2, chosen))


def test_lifetimes_save_memory() -> None:
    """A chain of tensors of one size, each used up before the next is made, needs one ring."""
    for levels in (2, 64, 65, 500):
        chain = [
            Edge(f"{level}", 0, 1, 1, 4, (2000,), 0, Order(None, level, level))
            for level in range(levels)
        ]
        assert len(make(chain, 2).rings[0]) == -(-levels // 64)


# ---- Budgets ---------------------------------------------------------------------------------------


def bytes_into(plan: Plan, task: int) -> int:
    return sum(link.bytes for link in plan.links if link.destination == task)


def cost(edge: Edge, place: Placement, chosen: Options) -> int:
    """Bytes of an edge's slots for what eight sends save."""
    loop = edge.flags & EdgeFlag.LOOP
    return rounded(place.bytes) * (chosen.loop_slots if loop else chosen.slots * 8)


@check
@given(edges(), options(), st.lists(st.integers(0, 2**17), min_size=TASKS, max_size=TASKS))
def test_budgets_are_kept(given_edges: list[Edge], chosen: Options, budgets: list[int]) -> None:
    chosen = Options(**{**vars(chosen), "budgets": budgets})
    plan = make(given_edges, TASKS, chosen)
    for task, budget in enumerate(budgets):
        assert bytes_into(plan, task) <= budget
        into = [
            (e, p) for e, p in zip(given_edges, plan.places, strict=True) if e.destination == task
        ]
        kept = [cost(e, p, chosen) for e, p in into if p.ring is not None]
        dropped = [cost(e, p, chosen) for e, p in into if p.reason == Reason.BUDGET]
        assert max(kept, default=0) <= min(dropped, default=2**200)


@check
@given(edges(), options())
def test_budgets_that_suffice_change_nothing(given_edges: list[Edge], chosen: Options) -> None:
    free = make(given_edges, TASKS, Options(**{**vars(chosen), "budgets": None}))
    enough = [bytes_into(free, task) for task in range(TASKS)]
    assert make(given_edges, TASKS, Options(**{**vars(chosen), "budgets": enough})) == free


def test_budget_of_nothing_leaves_empty_tensors() -> None:
    plan = make(
        [Edge("empty", 0, 1, 1, 4, (0, 5)), Edge("full", 0, 1, 1, 4, (5,))],
        2,
        Options(budgets=[0, 0]),
    )
    assert plan.places[0] == Placement(PlanClass.STATIC, Reason.NONE, 0, None, None, 0)
    assert plan.places[1] == Placement(PlanClass.DYNAMIC, Reason.BUDGET, 20, None, None, 0)


# ---- Independence of numbers -----------------------------------------------------------------------


def expect_same_when_renumbered(
    given_edges: list[Edge], chosen: Options, rng: random.Random
) -> None:
    plan = make(given_edges, TASKS, chosen)
    task = rng.sample(range(TASKS), TASKS)
    old = [task.index(number) for number in range(TASKS)]
    moved_budgets = chosen.budgets and [chosen.budgets[old[number]] for number in range(TASKS)]
    positions = rng.sample(range(len(given_edges)), len(given_edges))
    moved_edges = [
        given_edges[i]._replace(
            source=task[given_edges[i].source], destination=task[given_edges[i].destination]
        )
        for i in positions
    ]
    moved = make(moved_edges, TASKS, Options(**{**vars(chosen), "budgets": moved_budgets}))
    assert moved.places == [plan.places[i] for i in positions]
    expected = {
        (task[link.source], task[link.destination]): (link[2:], rings)
        for link, rings in zip(plan.links, plan.rings, strict=True)
    }
    found = {
        link[:2]: (link[2:], rings) for link, rings in zip(moved.links, moved.rings, strict=True)
    }
    assert found == expected
    assert [link[:2] for link in moved.links] == sorted(expected)


@check
@given(edges(), options(), st.randoms())
def test_plans_do_not_depend_on_numbers(
    given_edges: list[Edge], chosen: Options, rng: random.Random
) -> None:
    expect_same_when_renumbered(given_edges, chosen, rng)


@check
@given(
    st.sets(st.tuples(st.sampled_from("abcd"), st.integers(0, TASKS - 1))),
    st.integers(0, 20),
    st.sampled_from([0, 4096]),
    st.randoms(),
)
def test_ties_for_the_budget_do_not_depend_on_numbers(
    tied: set[tuple[str, int]], room: int, fuse_bytes: int, rng: random.Random
) -> None:
    given_edges = [
        Edge(name, source, 0, 1, 4, (16,), 0, Order(0, 0, None)) for name, source in sorted(tied)
    ]
    chosen = Options(fuse_bytes=fuse_bytes, budgets=[room * 64] * TASKS)
    expect_same_when_renumbered(given_edges, chosen, rng)


@check
@given(edges(), options(), st.integers(0, 29))
def test_hash_tells_plans_apart(given_edges: list[Edge], chosen: Options, index: int) -> None:
    if not given_edges:
        return
    index %= len(given_edges)
    changed = list(given_edges)
    changed[index] = changed[index]._replace(dtype=changed[index].dtype + 1)
    before, after = make(given_edges, TASKS, chosen), make(changed, TASKS, chosen)
    for old, new in zip(before.links, after.links, strict=True):
        same = (old.source, old.destination) != given_edges[index][1:3]
        assert (old.hash == new.hash) == same
    assert edge_hash(changed[index]) != edge_hash(given_edges[index])


# ---- The binding -----------------------------------------------------------------------------------


def test_words_of_classes_and_reasons() -> None:
    assert [str(plan_class) for plan_class in PlanClass] == ["static", "bounded", "dynamic", "rpc"]
    assert str(Reason.RANK) == "the rank is unknown"
    assert f"{Reason.NONE}" == ""


def test_plain_tuples_will_do() -> None:
    edge = Edge("e", 0, 1, 1, 4, (None, 3), 0, Order(1, 2, 3))
    options = Options(batch=5)
    plain: Any = ("e", 0, 1, 1, 4, (None, 3), 0, (1, 2, 3))
    assert make([plain], 2, options) == make([edge], 2, options)
    assert make(iter([edge]), 2, options).places[0].bytes == 60
    nodes: Any = [(0, 0), (1, 0)]
    assert find_order(nodes, [Arc(0, 1)], [Use(0, [1])]) == [Order(0, 0, 0)]


def test_nothing_is_a_plan_too() -> None:
    assert make([], 0) == Plan([], [], [])
    assert find_order([], [], []) == []


@pytest.mark.parametrize(
    ("edge", "cause"),
    [
        (Edge("e", 0, 2, 1, 4, ()), "task 2"),
        (Edge("e", -1, 1, 1, 4, ()), "arguments"),
        (Edge("e", 0, 1, 1, 4, (-3,)), "dimension 0 is -3"),
        (Edge("e", 0, 1, 1, 4, (2**63,)), "arguments"),
        (Edge("e\0f", 0, 1, 1, 4, ()), "zero byte"),
        (Edge("\ud800", 0, 1, 1, 4, ()), "surrogates"),
        (Edge(None, 0, 1, 1, 4, ()), "arguments"),  # type: ignore[arg-type]
        (Edge("e", 0, 1, 1, 4, 7), "arguments"),  # type: ignore[arg-type]
        (Edge("e", 0, 1, 1, 4, ("a",)), "arguments"),  # type: ignore[arg-type]
        (("e", 0), "arguments"),
    ],
)
def test_bad_edges_are_usage_errors(edge: Any, cause: str) -> None:
    with pytest.raises(rdmatensor.UsageError, match=cause):
        make([edge], 2)


def test_bad_arguments_are_usage_errors() -> None:
    edge = Edge("e", 0, 1, 1, 4, ())
    with pytest.raises(rdmatensor.UsageError, match="named e"):
        make([edge, edge], 2)
    for options in (Options(slots=0), Options(loop_slots=65), Options(batch=-1)):
        with pytest.raises(rdmatensor.UsageError):
            make([edge], 2, options)
    with pytest.raises(rdmatensor.UsageError, match="1 budgets for 2 tasks"):
        make([edge], 2, Options(budgets=[5]))
    with pytest.raises(rdmatensor.UsageError):
        make([edge], -1)
    with pytest.raises(rdmatensor.UsageError, match="consumer 5"):
        find_order([Node(0), Node(1)], [], [Use(0, [5])])
    with pytest.raises(rdmatensor.UsageError, match="node 7"):
        find_order([Node(0), Node(1)], [Arc(0, 7)], [])
    with pytest.raises(rdmatensor.UsageError):
        find_order([Node(-1)], [], [])
