# SPDX-License-Identifier: Apache-2.0
"""What the graph passes tell both ends of a transfer, as the servers log it."""

from __future__ import annotations

import os
import re
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf

from support import warm
from support.clusters import Cluster
from support.graphs import TASK0, TASK1, cross, session, v1

_EDGE = re.compile(
    r"plan: graph (?P<graph>\w+): (?P<task>\S+) (?P<verb>sends|receives) (?P<name>\S+) (?:to|from) "
    r"(?P<peer>\S+), (?P<known>.*)"
)
_COUNT = re.compile(r"plan: graph (\w+): (\d+) edges (into|out of) (\S+)")


class Transfer(NamedTuple):
    """A planned tensor; tasks are shortened to "worker0"."""

    source: str
    destination: str
    name: str
    known: str  # type, shape, order


def _short(task: str) -> str:
    return re.sub(r"/job:(\w+)/replica:0/task:(\d+)", r"\1\2", task)


def _plans(log: str) -> dict[str, set[Transfer]]:
    """By graph. What one end of a link was told, the other end must have been told too."""
    ends: dict[str, dict[str, set[Transfer]]] = defaultdict(lambda: defaultdict(set))
    found: dict[tuple[str, str, str], int] = defaultdict(int)
    for edge in _EDGE.finditer(log):
        graph, task, verb, name, peer, known = edge.groups()
        source, destination = (task, peer) if verb == "sends" else (peer, task)
        ends[graph][verb].add(Transfer(_short(source), _short(destination), name, known))
        found[graph, "out of" if verb == "sends" else "into", task] += 1
    counted = {(g, way, task): int(count) for g, count, way, task in _COUNT.findall(log)}
    assert found == counted
    for each in ends.values():
        assert each["sends"] == each["receives"]
    return {graph: each["sends"] for graph, each in ends.items()}


class Logs:
    """Of both workers, from the last look on."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._read = [0, 0]
        self.new()

    def new(self) -> str:
        """What they wrote since."""
        logs = [self._cluster.log(index) for index in (0, 1)]
        text = "\n".join(log[at:] for log, at in zip(logs, self._read, strict=True))
        self._read = [len(log) for log in logs]
        return text

    def plan(self) -> dict[str, str]:
        """Of the only graph that was planned since: link and name -> what is known of the tensor."""
        (plan,) = _plans(self.new()).values()
        return {f"{t.source}>{t.destination} {t.name}": t.known for t in plan}


@pytest.fixture(scope="module")
def talkative(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    settings = {"RDMATENSOR_LOG_LEVEL": "debug"}
    folder = tmp_path_factory.mktemp("talkative")
    cluster = Cluster.pair(folder, settings)
    yield cluster
    cluster.close()


@pytest.fixture
def logs(talkative: Cluster) -> Logs:
    return Logs(talkative)


def test_training_step(talkative: Cluster, logs: Logs) -> None:
    def build() -> Any:
        with tf.device(TASK1):
            weights = v1.get_variable("w", [100, 20], use_resource=True)
        with tf.device(TASK0):
            x = v1.placeholder(tf.float32, [None, 100], name="x")
            loss = tf.reduce_mean(tf.ones([32, 100]) @ weights.read_value())
            (gradient,) = tf.gradients(loss, [weights])
        with tf.device(TASK1):
            update = tf.raw_ops.ResourceApplyGradientDescent(
                var=weights.handle, alpha=0.1, delta=gradient
            )
            text = tf.strings.as_string(x + 1, name="text")
        return x, [loss, cross(text), update]

    with session(talkative, build) as opened:
        logs.new()
        x, fetches = opened.built
        opened.run(fetches, {x: np.ones([4, 100], "f")})
        plan = logs.plan()
        opened.run(fetches, {x: np.ones([4, 100], "f")})
        assert "plan: graph" not in logs.new(), "planned once, not in every step"
    types = {name: known.split(", ready")[0] for name, known in plan.items()}
    gradients = {name: each for name, each in types.items() if "gradients/" in name}
    assert list(gradients.values()) == ["float [100,20]"]
    assert types == gradients | {
        "worker1>worker0 Read/ReadVariableOp:0": "float [100,20]",
        # The feed enters at task 0, with the shape of the placeholder that it replaced.
        "worker0>worker1 x:0": "float [?,100]",
        "worker1>worker0 text:0": "string [?,100]",
    }


@pytest.fixture(params=["v1", "v2"])
def control_flow(request: pytest.FixtureRequest) -> Iterator[None]:
    """As TensorFlow 1 and 2 build branches and loops."""
    enabled = v1.control_flow_v2_enabled()
    (v1.enable_control_flow_v2 if request.param == "v2" else v1.disable_control_flow_v2)()
    yield
    (v1.enable_control_flow_v2 if enabled else v1.disable_control_flow_v2)()


def _named(plan: dict[str, str], link: str, name: str) -> str:
    """TensorFlow 2's functions are inlined: that puts something in front of the names in them."""
    (known,) = (
        known
        for edge, known in plan.items()
        if edge.startswith(f"{link} ") and edge.endswith((f" {name}:0", f"/{name}:0"))
    )
    return known


@pytest.mark.usefixtures("control_flow")
def test_loop(talkative: Cluster, logs: Logs) -> None:
    """A tensor that keeps its shape in a loop has it at every transfer, one that grows has not."""

    def build() -> Any:
        count = v1.placeholder(tf.int32, [])

        def body(i: Any, kept: Any, grown: Any) -> Any:
            with tf.device(TASK0):
                kept, grown = tf.multiply(kept, 2, "twice"), tf.concat([grown, grown], 0, "longer")
            with tf.device(TASK1):
                return i + 1, kept + 1, grown + 1

        with tf.device(TASK1):
            start = [0, tf.ones([7, 3]), tf.ones([1, 4])]
            shapes = [tf.TensorShape(shape) for shape in ([], [7, 3], [None, 4])]
            _, kept, grown = tf.while_loop(lambda i, *_: i < count, body, start, shapes)
            kept, grown = tf.sin(kept, "kept"), tf.sin(grown, "grown")
        return count, [cross(kept), cross(grown)]

    with session(talkative, build) as opened:
        count, results = opened.built
        logs.new()
        opened.run(results, {count: 2})
    plan = logs.plan()
    twice, longer = (_named(plan, "worker0>worker1", name) for name in ("twice", "longer"))
    assert twice.startswith("float [7,3], ready -1") and twice.endswith("in a loop")
    assert longer.startswith("float [?,4], ready -1") and longer.endswith("in a loop")
    kept, grown = (_named(plan, "worker1>worker0", name) for name in ("kept", "grown"))
    assert kept.startswith("float [7,3],") and "in a loop" not in kept
    assert grown.startswith("float [?,4],") and "in a loop" not in grown
    into = [known for edge, known in plan.items() if edge.startswith("worker1>worker0")]
    assert {"float [7,3]", "float [?,4]"} <= {
        known.split(", ready")[0] for known in into if "in a loop" in known
    }


def test_result_of_an_inner_loop(talkative: Cluster, logs: Logs) -> None:
    """What leaves a loop that lies in a loop is sent more than once."""
    v1.disable_control_flow_v2()

    def build() -> Any:
        def body(i: Any, x: Any) -> Any:
            _, x = tf.while_loop(lambda j, _: j < 2, lambda j, x: (j + 1, x + 1), [0, x])
            with tf.device(TASK0):
                x = tf.multiply(x, 2, "twice")
            return i + 1, x

        with tf.device(TASK1):
            _, x = tf.while_loop(lambda i, _: i < 3, body, [0, tf.ones([5])], name="outer")
        return cross(x)

    try:
        with session(talkative, build) as opened:
            logs.new()
            np.testing.assert_array_equal(opened.run(opened.built), np.full(5, 36.0))
    finally:
        v1.enable_control_flow_v2()
    plan = logs.plan()
    inner = _named(plan, "worker1>worker0", "while/Exit_1")
    assert inner.startswith("float [5],") and inner.endswith("in a loop")
    outer = _named(plan, "worker1>worker0", "outer/Exit_1")
    assert outer.startswith("float [5],") and "in a loop" not in outer


@pytest.mark.usefixtures("control_flow")
def test_branch(talkative: Cluster, logs: Logs) -> None:
    def build() -> Any:
        with tf.device(TASK1):
            taken = v1.placeholder(tf.bool, [])
            x = v1.placeholder(tf.float32, [8, None])

        def yes() -> Any:
            with tf.device(TASK0):
                y = tf.add(x, 1, "more")
            with tf.device(TASK1):
                return y * 2

        with tf.device(TASK1):
            chosen = tf.identity(tf.cond(taken, yes, lambda: x - 1))
        return taken, x, cross(chosen)

    with session(talkative, build) as opened:
        taken, x, result = opened.built
        logs.new()
        for flag, expected in ((True, 4), (False, 0)):
            fed = {taken: flag, x: np.ones([8, 2], "f")}
            np.testing.assert_array_equal(opened.run(result, fed), np.full([8, 2], expected))
    plan = logs.plan()
    more = _named(plan, "worker0>worker1", "more")
    assert more.startswith("float [8,?],") and "in a loop" not in more


def test_equal_graphs_of_two_sessions_are_told_apart(talkative: Cluster, logs: Logs) -> None:
    def build() -> Any:
        with tf.device(TASK1):
            return cross(tf.sin(tf.ones([3])))

    with session(talkative, build) as one, session(talkative, build) as other:
        logs.new()
        one.run(one.built)
        other.run(other.built)
        assert len(_plans(logs.new())) == 2


def test_functions_of_the_parameter_server_strategy(tmp_path: Path) -> None:
    """The process that makes the function plans for both tasks."""
    run = subprocess.run(
        [warm.python(), Path(__file__).with_name("train.py"), "grpc+rdma", "strategy"],
        env=os.environ | {"RDMATENSOR_LOG_LEVEL": "debug", "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert run.returncode == 0, run.stderr[-4000:]
    (log,) = tmp_path.glob("*/worker")
    plans = _plans(log.read_text()).values()
    (step,) = (plan for plan in plans if any(t.destination == "ps0" for t in plan))
    shapes = {"float [100,200]", "float [200,200]", "float [200,10]"}
    for link in (("ps0", "worker0"), ("worker0", "ps0")):
        sent = [t.known.split(", ready")[0] for t in step if (t.source, t.destination) == link]
        assert sorted(sent) == sorted(shapes)
