# SPDX-License-Identifier: Apache-2.0
"""What can be seen of a running cluster: metrics, waits, spans of TensorFlow's profiler."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from rdmatensor._tools import watching
from support.clusters import Cluster
from support.graphs import TASK1, Session, cross, session

PEER = "/job:worker/replica:0/task:1"
HERE = "/job:worker/replica:0/task:0"
STEPS = 3
SIZE = 700
SENT = SIZE * SIZE * 4


def late_and_early() -> Any:
    """Two tensors from worker 1, of which the second is computed, slowly, from the first."""
    with tf.device(TASK1):
        held = tf.compat.v1.get_variable("held", initializer=np.eye(SIZE, dtype="float32"))
        early = tf.identity(held, name="early")
        late = early
        for _ in range(20):
            late = late @ early
        late = tf.identity(late, name="late")
    return [cross(early), cross(late)]


def steps(opened: Session) -> None:
    """The first step connects; the others are counted."""
    for _ in range(STEPS):
        for value in opened.run(opened.built):
            np.testing.assert_array_equal(value, np.eye(SIZE, dtype="float32"))


def test_metrics_are_the_counters(cluster: Cluster) -> None:
    address = cluster.tasks[0].ask("metrics")
    with session(cluster, late_and_early) as opened:
        steps(opened)
        stats = cluster.stats(0)
        seen = watching.read(address)
    assert seen.value("plugin_loaded") == 1
    assert seen.labels("server_info") == [{"task": HERE}]
    assert stats["paths"]["static"]["received_bytes"] > 0
    for path, counts in stats["paths"].items():
        for name, number in counts.items():
            assert seen.value(f"{name}_total", path=path) == number, (path, name)
    # Tests before this one may have brought other peers.
    peers = {each["task"]: each for each in stats["peers"] if each["direction"] == "receive"}
    peer = peers[PEER]
    assert seen.value("peer_bytes_total", peer=PEER, direction="receive") == peer["bytes"]
    assert seen.value("peer_waits_total", peer=PEER) == peer["waits"] > 0
    assert seen.value("peer_wait_seconds_total", peer=PEER) == pytest.approx(peer["wait_us"] / 1e6)
    assert seen.value("peer_info", peer=PEER, direction="receive", state="ready") == 1
    (device,) = stats["devices"]
    assert device["task"] == HERE and device["notifies_received"] > 0
    assert seen.value("device_regions", address=device["address"]) == device["regions"] > 0


def test_every_metric_is_documented(cluster: Cluster, root: Path) -> None:
    with session(cluster, late_and_early) as opened:
        steps(opened)
        text = watching.fetch(cluster.tasks[0].ask("metrics"))
    # Also of those that have no value yet.
    served = re.findall(r"^# HELP (\w+)", text, re.M)
    # tests/train looks at those of rdmatensor.train, which this process does not use.
    page = (root / "docs/metrics.md").read_text()
    documented = re.findall(r"^\| `(rdmatensor_(?!train_)\w+)", page, re.M)
    assert sorted(documented) == sorted(served)


def test_the_late_edge_is_the_slow_one(cluster: Cluster) -> None:
    with session(cluster, late_and_early) as opened:
        steps(opened)
        slow = cluster.stats(0)["slow_edges"]
    assert (slow[0]["source"], slow[0]["destination"]) == (PEER, HERE)
    assert "late" in slow[0]["edge"]
    assert 0 < slow[0]["longest_us"] <= slow[0]["wait_us"]
    assert slow[0]["waits"] <= STEPS
    cluster.reset_stats()
    assert cluster.stats(0)["slow_edges"] == []


@pytest.fixture
def traced(tmp_path: Path) -> Callable[[Cluster, Callable[[], None]], list[list[dict[str, Any]]]]:
    """The events of both tasks while a function runs."""

    def trace(cluster: Cluster, body: Callable[[], None]) -> list[list[dict[str, Any]]]:
        files = [tmp_path / f"worker{index}.json" for index in range(2)]
        for task, file in zip(cluster.tasks, files, strict=True):
            task.ask(f"trace {file}")
        body()
        for task in cluster.tasks:
            task.ask("traced")
        return [json.loads(file.read_text())["traceEvents"] for file in files]

    return trace


@pytest.mark.parametrize("cluster", ["shared_cluster", "reading_cluster"], indirect=True)
def test_spans_tell_edge_and_peer(
    cluster: Cluster,
    traced: Callable[[Cluster, Callable[[], None]], list[list[dict[str, Any]]]],
) -> None:
    with session(cluster, late_and_early) as opened:
        steps(opened)
        receiver, sender = traced(cluster, lambda: steps(opened))

    def found(events: list[dict[str, Any]], what: str, edge: str) -> list[dict[str, Any]]:
        spans = [each for each in events if each["ph"] == "X" and each["name"] == what]
        return [each["args"] for each in spans if edge in each["args"].get("edge", "")]

    for edge in ("early", "late"):
        sent = found(sender, "send", edge)
        assert len(sent) == STEPS, [(each["name"], each["args"]) for each in sender]
        assert {each["peer"] for each in sent} == {HERE}
        assert {each["bytes"] for each in sent} == {SENT}
        assert {each["path"] for each in sent} == {"static" if cluster.plans else "dynamic"}
    waits = found(receiver, "wait", "late")
    assert waits and {each["peer"] for each in waits} == {PEER}
    assert {each["bytes"] for each in waits} == {SENT}
    assert bool(found(receiver, "read", "late")) == cluster.reads
    names = [each["args"]["name"] for each in receiver if each["name"] == "process_name"]
    assert names == [HERE]


def test_nothing_is_traced_without_the_plugin(tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    code = f"import rdmatensor.tensorflow as t\nwith t.trace({str(file)!r}): print('inside')"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode and "inside" not in done.stdout and not file.exists()
    assert "import tensorflow first" in done.stderr
