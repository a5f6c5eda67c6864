# SPDX-License-Identifier: Apache-2.0
"""Collective operations that cannot end well: an error with words at every member, and no waiting."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from plugin.collective_cluster import Members

# After a failure TensorFlow's executor of collectives is of no use any more, so each test has its own
# workers.


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Members]:
    """Two workers that may be spoilt."""
    members = Members(2, "grpc+rdma", tmp_path)
    yield members
    members.close()


def _reduce(elements: int = 1000, **more: Any) -> dict[str, Any]:
    operation = {"kind": "all_reduce", "dtype": "float32", "shape": [elements]}
    return {"operations": [operation], "members": [0, 1], "group": 1} | more


def test_member_dies_in_the_middle(tmp_path: Path) -> None:
    members = Members(3, "grpc+rdma", tmp_path)
    try:
        for member in members.all:
            member.begin("reduce_for_ever", elements=1 << 22, group=1)
        for member in members.all:
            assert member.answer(60) == "begun"
        members.all[2].kill()  # each has done one operation, and is in the middle of another
        killed = time.monotonic()
        for survivor in members.all[:2]:
            failure = survivor.answer(30)
            assert failure["error"] == "UnavailableError", failure
        assert time.monotonic() - killed < 20
    finally:
        members.close()


def test_time_out(two: Members) -> None:
    """One member does not come. What it then gets is TensorFlow's word for a lost group."""
    two.ask("run", **_reduce())
    two.all[0].begin("run", **_reduce(timeout_s=1.5))
    failure = two.all[0].answer(20)
    assert failure["error"] == "DeadlineExceededError", failure
    assert 1 <= failure["seconds"] < 10
    late = two.ask("run", of=[1], **_reduce())[0]
    assert "error" in late, late


def test_cancelled(two: Members) -> None:
    """One member's function is cancelled: the other does not wait for it."""
    two.ask("run", **_reduce())
    two.all[0].begin("run", **_reduce(cancel_after_s=1.0))
    failure = two.all[0].answer(20)
    assert failure["error"] == "CancelledError", failure
    late = two.ask("run", of=[1], **_reduce())[0]
    assert "error" in late, late


@pytest.mark.parametrize("formed", [False, True])
def test_members_disagree(two: Members, formed: bool) -> None:
    """In the first operation of a group TensorFlow refuses one of them; later the group itself does."""
    if formed:
        two.ask("run", **_reduce())
    two.all[0].begin("run", **_reduce(1000))
    two.all[1].begin("run", **_reduce(1001))
    for member in two.all:
        failure = member.answer(30)
        assert "error" in failure, failure


def test_corrupted_bytes(tmp_path: Path) -> None:
    """With checksums an error, at who compared and at who did not have all by then; no wrong sum."""
    # Faults can be set at any time, if the transports were wrapped for them.
    none = "corrupt_notify=#1000000000"
    checks = {"RDMATENSOR_CHECKSUM": "crc32c", "RDMATENSOR_FAULTS": none}
    members = Members(2, "grpc+rdma", tmp_path, dict.fromkeys(range(2), checks))
    try:
        sound = members.ask("run", **_reduce())
        assert sound[0] == sound[1] and "results" in sound[0], sound
        members.ask("faults", of=[1], text="corrupt_notify=#1")
        answers = members.ask("run", **_reduce())
        assert members.ask("faults", of=[1], text=none)[0]["corrupt_notify"] == 1
        assert answers[0]["error"] == "DataLossError", answers
        assert "what member 1 sent to member 0 arrived corrupted" in answers[0]["words"], answers
        assert answers[1] == sound[1] or answers[1]["error"] == "DataLossError", answers
    finally:
        members.close()


@pytest.mark.parametrize("without", [0, 1])
def test_member_without_a_device(tmp_path: Path, without: int) -> None:
    """The whole group is left to gRPC, the values are right, and one warning says so."""
    members = Members(2, "grpc+rdma", tmp_path, {without: {"RDMATENSOR_POLICY": "grpc"}})
    try:
        answers = members.ask("run", **_reduce())
        assert answers[0] == answers[1] and "results" in answers[0], answers
        warnings = members.warnings()
        assert len(warnings) == 1 and "go by grpc" in warnings[0], warnings
        collectives = members.ask("stats", of=[1 - without])[0]["collectives"]
        assert collectives["by_tensorflow"] == {"group": 1}, collectives
    finally:
        members.close()
