# SPDX-License-Identifier: Apache-2.0
"""Members of a collective operation that disagree about it: TensorFlow's error at every one, and no waiting.

What TensorFlow says is asked of its own servers, over grpc. There one member gets the error, and another may
wait for ever: which one depends on who asks the group's leader first.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from plugin.collective_cluster import Members

ANSWER_S = 60
KEY = 5
# What users and TensorFlow's tests look for; shapes and types in either order.
SHAPES = re.compile(
    rf"Shape mismatch in the collective instance {KEY}\. Op at device (?P<device>\S+) expected shape "
    r"(?P<a>\[[\d,]*\]) but another member in the group expected shape (?P<b>\[[\d,]*\])\. This is likely "
    r"due to different input shapes at different members of the collective op\."
)
TYPES = re.compile(
    rf"Collective instance {KEY} expected type (?P<a>\d+ and data_type \d+) but got type "
    r"(?P<b>\d+ and data_type \d+)"
)
SIZES = re.compile(
    r"is joining a group with size ?(?P<a>\d+), but that group has size (?P<b>\d+) \(group_key=1\)"
)
EACH = {"InvalidArgumentError": [SHAPES], "InternalError": [TYPES, SIZES]}

Operation = dict[str, Any]
Start = Callable[[int, str], Members]


def operation(shape: list[int], kind: str = "all_reduce", dtype: str = "float32") -> Operation:
    return {"kind": kind, "dtype": dtype, "shape": shape, "key": KEY}


def arguments(op: Operation, members: int = 2, group: int = 1) -> dict[str, Any]:
    return {"operations": [op], "members": list(range(members)), "group": group}


def good(key: int) -> Operation:
    return {"kind": "all_reduce", "dtype": "float32", "shape": [100], "key": key}


def essence(failure: dict[str, Any]) -> tuple[str, frozenset[str]]:
    """The kind of the error, and what its words say that the members want."""
    words = failure["words"]
    assert "Collective ops is aborted by: " in words, words
    for pattern in EACH[failure["error"]]:
        if found := pattern.search(words):
            return failure["error"], frozenset((found["a"], found["b"]))
    raise AssertionError(f"not what TensorFlow says: {words}")


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts clusters, by size and protocol."""
    clusters: list[Members] = []

    def new(size: int, protocol: str) -> Members:
        folder = tmp_path / str(len(clusters))
        folder.mkdir()
        clusters.append(Members(size, protocol, folder))
        return clusters[-1]

    yield new
    for cluster in clusters:
        cluster.close()


def stock(start: Start, calls: list[dict[str, Any]]) -> tuple[str, frozenset[str]]:
    """What TensorFlow's own servers say."""
    cluster = start(len(calls), "grpc")
    formed = cluster.ask("run", **arguments(good(1), len(calls)))
    assert all("results" in answer for answer in formed), formed
    for member, call in zip(cluster.all, calls, strict=True):
        member.begin("run", **call)
    said = essence(cluster.first_answer(ANSWER_S))
    cluster.close()
    return said


def disagree(cluster: Members, calls: list[dict[str, Any]]) -> set[tuple[str, frozenset[str]]]:
    """What all members say: of the operation, and of those that follow, under a used and a new key."""
    for member, call in zip(cluster.all, calls, strict=True):
        member.begin("run", **call)
    said = {essence(member.answer(ANSWER_S)) for member in cluster.all}
    for key in (1, 99):
        answers = cluster.ask("run", timeout_s=ANSWER_S, **arguments(good(key), len(calls)))
        said |= {essence(answer) for answer in answers}
    return said


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param(operation([2, 3]), operation([3, 2]), id="shape"),
        pytest.param(operation([6]), operation([6], dtype="int32"), id="type"),
        pytest.param(operation([6]), operation([6], "all_gather"), id="kind"),
    ],
)
def test_what_tensorflow_says(start: Start, one: Operation, other: Operation) -> None:
    """In a group that is known, where only counts of elements used to be compared."""
    calls = [arguments(one), arguments(other)]
    cluster = start(2, "grpc+rdma")
    formed = cluster.ask("run", **arguments(good(1)))
    assert all("results" in answer for answer in formed), formed
    assert disagree(cluster, calls) == {stock(start, calls)}


@pytest.mark.parametrize(
    ("one", "other", "kind"),
    [
        pytest.param([2, 6], [2, 2, 3], "all_to_all", id="all_to_all"),
        pytest.param([2, 3], [3, 3], "all_gather", id="rows of a gathering"),
        pytest.param([4, 3], [2, 6], "reduce_scatter", id="reduce_scatter"),
        pytest.param([2, 3], [3, 2], "broadcast", id="broadcast"),
        pytest.param([0, 3], [3, 0], "all_reduce", id="no elements"),
    ],
)
def test_shapes_of_each_kind(start: Start, one: list[int], other: list[int], kind: str) -> None:
    cluster = start(2, "grpc+rdma")
    cluster.ask("run", **arguments(good(1)))
    said = disagree(cluster, [arguments(operation(shape, kind)) for shape in (one, other)])
    assert len(said) == 1 and {error for error, _ in said} == {"InvalidArgumentError"}, said


def test_first_operation_of_a_group(start: Start) -> None:
    """There TensorFlow's leader refuses one of them, and the other one has to learn why."""
    said = disagree(
        start(2, "grpc+rdma"), [arguments(operation([2, 3])), arguments(operation([3, 2]))]
    )
    assert said == {("InvalidArgumentError", frozenset(("[2,3]", "[3,2]")))}


def test_size_of_the_group(start: Start) -> None:
    cluster = start(2, "grpc+rdma")
    cluster.ask("run", **arguments(good(1)))
    calls = [arguments(operation([6])), arguments(operation([6]), members=3)]
    assert disagree(cluster, calls) == {("InternalError", frozenset(("3", "2")))}


@pytest.mark.parametrize("late", [0, 2])
def test_one_of_three_is_late(start: Start, late: int) -> None:
    """It comes when the others have given up, and agrees with one of them."""
    cluster = start(3, "grpc+rdma")
    cluster.ask("run", **arguments(good(1), 3))
    others = [rank for rank in range(3) if rank != late]
    for rank in others:
        shape = [3, 2] if rank == 1 else [2, 3]
        cluster.all[rank].begin("run", **arguments(operation(shape), 3))
    said = {essence(cluster.all[rank].answer(ANSWER_S)) for rank in others}
    cluster.all[late].begin("run", **arguments(operation([2, 3]), 3))
    said.add(essence(cluster.all[late].answer(ANSWER_S)))
    assert said == {("InvalidArgumentError", frozenset(("[2,3]", "[3,2]")))}


def test_other_groups_learn_it(start: Start) -> None:
    """A member that TensorFlow has aborted comes to no operation any more: its other groups do not wait."""
    cluster = start(3, "grpc+rdma")
    cluster.ask("run", of=[0, 1], **arguments(good(1)))
    other: dict[str, Any] = {"operations": [good(1)], "members": [1, 2], "group": 2}
    formed = cluster.ask("run", of=[1, 2], **other)
    assert all("results" in answer for answer in formed), formed
    for rank, shape in enumerate(([2, 3], [3, 2])):
        cluster.all[rank].begin("run", **arguments(operation(shape)))
    said = {essence(cluster.all[rank].answer(ANSWER_S)) for rank in range(2)}
    said.add(essence(cluster.ask("run", of=[2], timeout_s=ANSWER_S, **other)[0]))
    assert said == {("InvalidArgumentError", frozenset(("[2,3]", "[3,2]")))}
