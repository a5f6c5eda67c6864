# SPDX-License-Identifier: Apache-2.0
"""The members of benchmarks that train do so with the rdmatensor.train of today."""

from __future__ import annotations

from typing import Any

import pytest

from team import Team

TABLE = {"rows": 64, "width": 8, "ids": 16, "ways": ["owners"], "rule": "sgd"}


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("program", "words", "orders"),
    [
        ("training_member", ["keras"], [("steps", {"count": 1})]),
        pytest.param(
            "sharded_member",
            [],
            [
                ("train", {"way": way, "compute": 0, "steps": 1, "less": 64})
                for way in ("sharded", "ahead", "all-reduce")
            ],
            marks=pytest.mark.long,
        ),
        pytest.param(
            "split_member",
            [],
            [
                (
                    "steps",
                    {
                        "count": 1,
                        "way": way,
                        "pixels": 32,
                        "classes": 10,
                        "batch": 8,
                        "speed": 1e15,
                    },
                )
                for way in ("split", "all-reduce")
            ],
            marks=pytest.mark.long,
        ),
        ("tables_member", [], [("train", TABLE), ("block", {"way": "owners", "steps": 2})]),
    ],
)
def test_members_train(
    program: str, words: list[str], orders: list[tuple[str, dict[str, Any]]]
) -> None:
    with Team() as team:
        members = team.members(program, 2, words=words)
        for command, fields in orders:
            assert all(members.ask(command, **fields))
