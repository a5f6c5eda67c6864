# SPDX-License-Identifier: Apache-2.0
"""Collective operations on tensors in the memory of devices, whose copies come late: see test_devices.py.

The device has the type GPU here, for which TensorFlow has kernels of these operations.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from plugin.collective_cluster import Members, check, compare, went_by_rdmatensor
from plugin.test_collectives import KINDS

LATE = {"TEST_DEVICE_COPY_US": "2000", "TEST_DEVICE_KERNEL_US": "2000"}


def _members(
    size: int, protocol: str, library: Path, folder: Path, settings: dict[str, str]
) -> Members:
    device = {"TEST_DEVICE_LIBRARY": str(library), "TEST_DEVICE_TYPE": "GPU"}
    return Members(size, protocol, folder, dict.fromkeys(range(size), settings | device))


@pytest.fixture(scope="module")
def three(device_library: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Members]:
    """Three workers with a device each; groups of two are made among them."""
    folder = tmp_path_factory.mktemp("three")
    members = _members(3, "grpc+rdma", device_library, folder, LATE)
    yield members
    members.close()


@pytest.fixture
def cluster(three: Members) -> Members:
    """The same with counters at zero."""
    three.ask("reset")
    return three


@pytest.fixture
def two(device_library: Path, tmp_path: Path) -> Iterator[Members]:
    """Two workers that may be spoilt."""
    members = _members(2, "grpc+rdma", device_library, tmp_path, {})
    yield members
    members.close()


def _operations(kinds: list[str], size: int) -> list[dict[str, Any]]:
    return [
        {"kind": kind, "dtype": "float32", "shape": [size, *more], "seed": seed}
        for kind in kinds
        for seed, more in enumerate(([], [5], [3, 17], [40_001], [1 << 18]))
    ]


@pytest.mark.parametrize("size", [2, 3])
def test_kinds_and_sizes(cluster: Members, size: int) -> None:
    operations = _operations(KINDS, size)
    check(cluster, operations, size, times=3)
    went_by_rdmatensor(cluster, size, 3 * len(operations))


def test_over_grpc(device_library: Path, tmp_path: Path) -> None:
    """TensorFlow's own algorithms give the same on this device."""
    members = _members(2, "grpc", device_library, tmp_path, {})
    try:
        check(members, _operations(["all_reduce", "all_gather", "broadcast"], 2), 2)
    finally:
        members.close()


def test_reductions_and_types(cluster: Members) -> None:
    reductions: list[dict[str, Any]] = [
        {"kind": kind, "dtype": "float32", "shape": [6 * 37], "options": {"merge_op": reduction}}
        for kind in ("all_reduce", "reduce_scatter")
        for reduction in ("Add", "Mul", "Min", "Max")
    ]
    mean = {
        "kind": "all_reduce",
        "dtype": "float32",
        "shape": [999],
        "options": {"final_op": "Div"},
    }
    moved = [
        {"kind": kind, "dtype": dtype, "shape": [3, 5]}
        for kind in ("all_gather", "all_to_all", "broadcast")
        for dtype in ("float16", "float64", "int32", "int64")
    ]
    operations = [
        *reductions,
        mean,
        {"kind": "all_gather", "dtype": "float32", "shape": [0, 3]},
        *moved,
    ]
    check(cluster, operations, 3)
    went_by_rdmatensor(cluster, 3, len(operations))


def test_nccl_is_left_to_tensorflow(cluster: Members) -> None:
    """Which has a ring where there is no NCCL."""
    operation = {"kind": "all_reduce", "dtype": "float32", "shape": [1001]}
    check(cluster, [operation | {"options": {"communication_hint": "nccl"}}], 2)
    for stats in cluster.ask("stats", of=[0, 1]):
        assert stats["collectives"]["by_tensorflow"] == {"nccl": 1}, stats["collectives"]


def test_strategy(cluster: Members) -> None:
    for shape in ([1], [33, 7], [1 << 18]):
        answers = cluster.ask("strategy_reduce", dtype="float32", shape=shape)
        for rank, answer in enumerate(answers):
            for kind, result in zip(("all_reduce", "all_gather"), answer["results"], strict=True):
                compare({"kind": kind, "dtype": "float32", "shape": shape}, rank, 3, result)
    for stats in cluster.ask("stats"):
        assert stats["collectives"]["by_tensorflow"] == {}, stats["collectives"]


def _reduce(**more: Any) -> dict[str, Any]:
    operation = {"kind": "all_reduce", "dtype": "float32", "shape": [100_000]}
    return {"operations": [operation], "members": [0, 1], "group": 1} | more


@pytest.mark.parametrize("what", ["input", "output"])
def test_copy_that_fails(two: Members, what: str) -> None:
    """Each member learns why: at once, or, if it has its result already, in its next operation."""
    sound = two.ask("run", **_reduce())
    assert sound[0] == sound[1] and "results" in sound[0], sound
    fail = "fail_to_host=1" if what == "input" else "fail_to_device=1"
    two.all[0].begin("run", **_reduce())
    two.all[1].begin("run", **_reduce(device=fail))
    outcomes = [member.answer(60) for member in two.all]
    if what == "output" and outcomes[0] == sound[0]:
        two.all[0].begin("run", **_reduce())
        outcomes[0] = two.all[0].answer(60)
    for outcome in outcomes:
        assert outcome["error"] == "InternalError", outcomes
        assert f"GPU:0 did not copy the {what} of" in outcome["words"], outcomes
        assert "the test's device does not copy" in outcome["words"], outcomes


@pytest.mark.parametrize("hold", ["hold_to_host", "hold_to_device"])
def test_member_dies_while_it_copies(two: Members, hold: str) -> None:
    two.ask("run", **_reduce())
    two.all[1].begin("run", **_reduce(device=f"{hold}=1"))
    two.all[0].begin("run", **_reduce())
    if hold == "hold_to_device":  # it has given what it had to give
        assert "results" in two.all[0].answer(60)
        two.all[0].begin("run", **_reduce())
    two.all[1].kill()
    outcome = two.all[0].answer(30)
    assert outcome["error"] == "UnavailableError", outcome
