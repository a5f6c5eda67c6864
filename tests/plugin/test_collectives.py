# SPDX-License-Identifier: Apache-2.0
"""Collective operations over grpc+rdma: values, and that nothing of them goes by gRPC."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from plugin.collective_cluster import Members, check, compare, groups, went_by_rdmatensor
from support.collective_values import value

KINDS = ["all_reduce", "all_gather", "broadcast", "reduce_scatter", "all_to_all"]
REDUCED = ["float32", "float64", "float16", "bfloat16", "int32", "int64"]


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Members]:
    """Four workers; groups of fewer are made among them."""
    members = Members(4, "grpc+rdma", tmp_path_factory.mktemp("four"))
    yield members
    members.close()


@pytest.fixture
def cluster(four: Members) -> Members:
    """The same with counters at zero."""
    four.ask("reset")
    return four


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_kinds_and_sizes(cluster: Members, kind: str, size: int) -> None:
    # TensorFlow wants one row for each member of an all-to-all.
    rows = {"all_to_all": [size], "reduce_scatter": [size, 1021 * size]}.get(kind, [1, 7, 1021])
    operations = [
        {"kind": kind, "dtype": "float32", "shape": [n, *more], "seed": i}
        for i, (n, more) in enumerate(itertools.product(rows, ([], [5], [3, 17])))
    ]
    check(cluster, operations, size)
    went_by_rdmatensor(cluster, size, len(operations))


CHAIN: dict[str, Any] = {
    "format": "rdmatensor-topology",
    "version": 1,
    "name": "chain",
    "members": [{"name": name} for name in "abc"],
    "links": [{"from": a, "to": b, "bandwidth": 1e9} for a, b in ("ab", "bc")],
}


def _algorithms_of_newest(cluster: Members, member: int) -> Any:
    """Of the newest group, whose key is the largest here."""
    (stats,) = cluster.ask("stats", of=[member])
    groups = stats["collectives"]["groups"]
    return max(groups, key=lambda group: int(group["group_key"]))["algorithms"]


def test_trees_of_a_topology(cluster: Members, tmp_path: Path) -> None:
    """All use the first worker's trees: for long tensors no other algorithm is as fast along a chain."""
    path = tmp_path / "chain.json"
    path.write_text(json.dumps(CHAIN))
    kinds = ("all_reduce", "all_gather", "broadcast", "reduce_scatter")
    operations = [
        {"kind": kind, "dtype": "float32", "shape": [3 * n], "seed": n}
        for kind in kinds
        for n in (1001, 100_000)
    ]
    cluster.ask("topology", of=[0], path=str(path))
    try:
        check(cluster, operations, 3)
        went_by_rdmatensor(cluster, 3, len(operations))
        for member in range(3):
            algorithms = _algorithms_of_newest(cluster, member)
            assert algorithms["trees"]["operations"] >= len(kinds), algorithms
        # The trees are for three.
        check(cluster, operations[:1], 2)
    finally:
        cluster.ask("topology", of=[0], path=None)
    check(cluster, operations[:1], 3)
    assert "trees" not in _algorithms_of_newest(cluster, 0)


@pytest.mark.parametrize("size", [2, 3])
def test_types_and_reductions(cluster: Members, size: int) -> None:
    reductions = [
        {"kind": kind, "dtype": dtype, "shape": [6 * 37], "options": {"merge_op": reduction}}
        for kind in ("all_reduce", "reduce_scatter")
        for dtype in REDUCED
        for reduction in ("Add", "Min", "Max")
    ]
    divided = [
        {"kind": "all_reduce", "dtype": dtype, "shape": [999], "options": {"final_op": "Div"}}
        for dtype in ("float32", "float64")
    ]
    moved = [
        {"kind": kind, "dtype": dtype, "shape": [size, 5]}
        for kind in ("all_gather", "all_to_all", "broadcast")
        for dtype in (*REDUCED, "bool")
        # Those that TensorFlow's operations take.
        if dtype != "bfloat16" and (dtype != "bool" or kind == "broadcast")
    ]
    check(cluster, reductions + divided + moved, size)
    went_by_rdmatensor(cluster, size, len(reductions + divided + moved))


@pytest.mark.parametrize("elements", [0, 1, 1023, 4097, 65537, 1048577])
def test_odd_sizes(cluster: Members, elements: int) -> None:
    for size in (2, 3):
        check(cluster, [{"kind": "all_reduce", "dtype": "float32", "shape": [elements]}], size)


def test_all_members_have_the_same_bits(cluster: Members) -> None:
    operations = [
        {"kind": "all_reduce", "dtype": "float32", "shape": [n]} for n in (10, 3001, 300007)
    ]
    answers = check(cluster, operations, 4)
    assert all(answer == answers[0] for answer in answers)


def test_keys_are_used_again(cluster: Members) -> None:
    operations = [{"kind": "all_reduce", "dtype": "int32", "shape": [n]} for n in (1, 1000, 100000)]
    check(cluster, operations, 3, times=20)
    went_by_rdmatensor(cluster, 3, 60)


def test_first_version_of_the_operation(cluster: Members) -> None:
    check(cluster, [{"kind": "reduce_v1", "dtype": "float32", "shape": [501]}], 2, times=3)
    went_by_rdmatensor(cluster, 2, 3)


def test_many_groups_at_once(cluster: Members) -> None:
    """Each pair of workers has its own group, and all are formed and used at the same time."""
    pairs = list(itertools.combinations(range(4), 2))
    first = next(groups)
    operation = {"kind": "all_reduce", "dtype": "float32", "shape": [20011]}
    rounds = [[(0, 1), (2, 3)], [(0, 2), (1, 3)], [(0, 3), (1, 2)]]
    for number, round_ in enumerate(rounds):
        for pair in round_:
            for member in pair:
                cluster.all[member].begin(
                    "run",
                    operations=[operation],
                    members=list(pair),
                    group=first + 10 * number + pairs.index(pair),
                    times=5,
                )
    answers = {
        (number, member): cluster.all[member].answer(60)
        for number in range(3)
        for member in range(4)
    }
    for number, round_ in enumerate(rounds):
        for pair in round_:
            one, *others = (value(member, "float32", [20011], 0) for member in pair)
            total = sum(others, one)
            for member in pair:
                assert answers[number, member]["results"] == [total.tobytes().hex()]


def test_nothing_goes_by_grpc(cluster: Members) -> None:
    """Of 64 MB: a worker serves, and counts, every buffer that is asked for by RecvBuf."""
    operations = [{"kind": kind, "dtype": "float32", "shape": [4, 1 << 16]} for kind in KINDS]
    check(cluster, operations, 4, times=16)
    for stats in cluster.ask("stats"):
        assert stats["collectives"]["served_by_grpc"] == {"buffers": 0, "bytes": 0}


def test_strategy(cluster: Members) -> None:
    for shape in ([1], [33, 7], [1 << 18]):
        answers = cluster.ask("strategy_reduce", dtype="float32", shape=shape)
        for rank, answer in enumerate(answers):
            for kind, result in zip(("all_reduce", "all_gather"), answer["results"], strict=True):
                compare({"kind": kind, "dtype": "float32", "shape": shape}, rank, 4, result)
    for stats in cluster.ask("stats"):
        assert stats["collectives"]["by_tensorflow"] == {}, stats["collectives"]
    assert cluster.warnings() == []
