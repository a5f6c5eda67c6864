# SPDX-License-Identifier: Apache-2.0
"""Which process this is, as launchers tell it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rdmatensor.errors import UsageError
from rdmatensor.train.run.roles import role_of

ADDRESSES = ["a:1", "b:2", "a:3"]


def _tf_config(job: str, index: int, **cluster: Any) -> dict[str, str]:
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": job, "index": index}})}


@pytest.mark.parametrize(
    ("environment", "given", "expected"),
    [
        ({}, {}, (0, 1, "", 0)),
        (_tf_config("worker", 2, worker=ADDRESSES), {}, (2, 3, "a:1", 1)),
        (_tf_config("worker", 0, chief=["c:9"], worker=ADDRESSES), {}, (1, 4, "c:9", 0)),
        (_tf_config("worker", 0, worker=["a:1"]), {}, (0, 1, "a:1", 0)),
        (_tf_config("worker", 1, worker=ADDRESSES), {"root": "x:5"}, (1, 3, "x:5", 0)),
        (
            {
                "RANK": "3",
                "WORLD_SIZE": "4",
                "LOCAL_RANK": "1",
                "MASTER_ADDR": "m",
                "MASTER_PORT": "7",
            },
            {},
            (3, 4, "m:7", 1),
        ),
        (
            {"SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_LOCALID": "0"},
            {"root": "s:1"},
            (1, 2, "s:1", 0),
        ),
        (
            {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"},
            {"root": "[::1]:4"},
            (1, 2, "[::1]:4", 0),
        ),
        ({"RANK": "3", "WORLD_SIZE": "4"}, {"rank": 0, "size": 2, "root": "r:1"}, (0, 2, "r:1", 0)),
    ],
)
def test_place(
    environment: dict[str, str], given: dict[str, Any], expected: tuple[Any, ...]
) -> None:
    role = role_of(environment, given.get("rank"), given.get("size"), given.get("root"))
    assert (role.rank, role.size, role.root, role.local_rank) == expected


@pytest.mark.parametrize(
    ("environment", "given", "words"),
    [
        ({}, {"rank": 1}, "give both"),
        ({}, {"rank": 2, "size": 2, "root": "a:1"}, "rank 2 of 2"),
        ({}, {"rank": 0, "size": 2}, "init\\(root="),
        ({}, {"rank": 0, "size": 2, "root": "host"}, "init\\(root="),
        ({}, {"rank": 0, "size": 2, "root": "host:0"}, "init\\(root="),
        ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "m"}, {}, "MASTER_PORT"),
        ({"RANK": "x", "WORLD_SIZE": "2"}, {}, "RANK"),
        ({"TF_CONFIG": "{"}, {}, "TF_CONFIG"),
        ({"TF_CONFIG": "[]"}, {}, "TF_CONFIG"),
        (_tf_config("worker", 5, worker=ADDRESSES), {}, "no task worker 5"),
        (_tf_config("ps", 0, worker=ADDRESSES, ps=["p:1"]), {}, "parameter servers"),
    ],
)
def test_what_is_unclear_is_refused(
    environment: dict[str, str], given: dict[str, Any], words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        role_of(environment, given.get("rank"), given.get("size"), given.get("root"))
