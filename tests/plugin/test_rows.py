# SPDX-License-Identifier: Apache-2.0
"""The plugin's kernels for rows of variables do what TensorFlow's do, to the bit, and fail in its words."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from support import warm
from support.clusters import Cluster
from support.graphs import TASK0, TASK1, session, v1


def _run(protocol: str, threads: int, *operation: str, **settings: str) -> Any:
    program = Path(__file__).with_name("row_operations.py")
    run = subprocess.run(
        [warm.python(), program, protocol, str(threads), *operation],
        capture_output=True,
        text=True,
        timeout=115,
        env=os.environ | settings,
    )
    assert run.returncode == 0, run.stderr[-4000:]
    return json.loads(run.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def stock() -> Any:
    """What TensorFlow's kernels do, one id after the other."""
    return _run("grpc", 1)


@pytest.fixture(scope="module", params=[1, 2], ids=["one_thread", "two_threads"])
def ours(request: pytest.FixtureRequest) -> Any:
    return _run("grpc+rdma", request.param)


def _said(told: Any) -> dict[str, Any]:
    return {name: case["said"] for name, case in told["cases"].items()}


def test_every_case_ends_as_with_tensorflow(stock: Any, ours: Any) -> None:
    expected, found = _said(stock), _said(ours)
    assert expected.keys() == found.keys()
    different = [name for name in expected if expected[name] != found[name]]
    assert not different, {name: (expected[name], found[name]) for name in different[:3]}
    failed = [name for name, said in expected.items() if isinstance(said, list) and all(said)]
    assert len(failed) > 100, "hardly anything is refused"


def test_the_common_cases_are_ours(ours: Any) -> None:
    for name, case in ours["cases"].items():
        operation, _, what = name.partition(": ")
        if (
            "multiply_linear_by_lr" in operation
            or isinstance(case["said"], list)
            or what == "no ids"
        ):
            expected = [0, 1]
        elif what.endswith((", width 64", ", width 13")) or what in ("frequent ids", "wide rows"):
            expected = [1, 0]
        else:
            continue
        assert case["done"] == expected, name


def test_steps_at_the_same_time_lose_nothing(stock: Any, ours: Any) -> None:
    assert ours["concurrent"] == stock["concurrent"]
    assert ours["concurrent"]["added"] == [80.0]


def test_a_read_keeps_what_it_saw(ours: Any) -> None:
    assert ours["earlier_reads_stay"]


def test_other_sessions_of_the_process_keep_tensorflows_kernels(ours: Any) -> None:
    assert ours["other_session"] == [0, 0]


def test_a_process_without_such_a_server_never_uses_them(stock: Any) -> None:
    assert all(case["done"] == [0, 0] for case in stock["cases"].values())


def test_switched_off_they_do_nothing(stock: Any) -> None:
    told = _run("grpc+rdma", 1, "ResourceScatterSub", RDMATENSOR_ROW_KERNELS="off")
    cases = {name: case for name, case in told["cases"].items() if "no value" not in name}
    assert cases, "no such operation"
    for name, case in cases.items():
        assert case == stock["cases"][name], name


def test_a_task_without_the_plugin_uses_its_own(tmp_path: Path) -> None:
    """The session's master has the plugin, and one of the tasks that it gives parts of the graph has not."""

    def build() -> Any:
        tables: list[Any] = []
        changes: list[Any] = []
        for task in (TASK0, TASK1):
            with tf.device(task):
                name = f"table{len(tables)}"
                tables.append(
                    v1.get_variable(name, initializer=tf.zeros([1000, 64]), use_resource=True)
                )
                slices = tf.IndexedSlices(tf.ones([3, 64]), tf.constant([5, 999, 5]))
                changes.append(tables[-1].scatter_add(slices))
        with tf.device(TASK1):
            return changes, [tf.gather(table, [5, 999, 0]) + 0 for table in tables]

    cluster = Cluster(["grpc+rdma", "grpc"], tmp_path, {1: {"RDMATENSOR_DISABLE": "1"}})
    try:
        with session(cluster, build) as opened:
            changes, reads = opened.built
            for _ in range(4):
                opened.run(changes)
            for read in opened.run(reads):
                np.testing.assert_array_equal(read[:, 0], [8, 4, 0])
        assert cluster.stats(0)["rows"]["operations"] >= 3
    finally:
        cluster.close()
