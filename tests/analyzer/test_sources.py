# SPDX-License-Identifier: Apache-2.0
"""All that can be analysed, and what is told of the rest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from graph_analyzer import AnalysisError, PlacedOn, TransferPlan, analyze
from support import placed_graphs as graphs

STEP = graphs.training()
NAMES = [tensor.name for tensor in STEP.fetches]
FEEDS = [tensor.name for tensor in STEP.feeds]


def expected() -> TransferPlan:
    return analyze(STEP.graph, fetches=STEP.fetches, feeds=STEP.feeds)


@pytest.mark.parametrize("suffix", [".pb", ".pbtxt"])
def test_files_of_graphs(tmp_path: Path, suffix: str) -> None:
    name = f"graph{suffix}"
    tf.io.write_graph(STEP.graph, str(tmp_path), name, as_text=suffix == ".pbtxt")
    assert analyze(tmp_path / name, fetches=NAMES, feeds=FEEDS) == expected()
    assert analyze(STEP.graph.as_graph_def(), fetches=NAMES, feeds=FEEDS) == expected()


def test_the_source_is_left_as_it_was() -> None:
    graph = STEP.graph.as_graph_def()
    before = graph.SerializeToString(deterministic=True)
    analyze(graph, fetches=NAMES, feeds=FEEDS, optimize=True)
    assert graph.SerializeToString(deterministic=True) == before


def test_plans_do_not_depend_on_the_order_of_nodes() -> None:
    graph = STEP.graph.as_graph_def()
    turned = type(graph)(node=reversed(graph.node), library=graph.library, versions=graph.versions)
    assert analyze(turned, fetches=NAMES, feeds=FEEDS) == expected()


def test_saved_model(tmp_path: Path) -> None:
    class Module(tf.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.w = tf.Variable(tf.ones([4, 2]))

        @tf.function(input_signature=[tf.TensorSpec([None, 4])])  # type: ignore[untyped-decorator]
        def __call__(self, x: Any) -> Any:
            with tf.device(graphs.WORKERS[1]):
                return tf.matmul(x, self.w, name="product")

    module = Module()
    tf.saved_model.save(module, str(tmp_path), signatures=module.__call__)
    plan = analyze(tmp_path, batch_size=32)
    there = {
        edge.shape: edge for edge in plan.edges if edge.source.endswith("worker/replica:0/task:0")
    }
    assert there[4, 2].plan_class == "static"
    assert there[None, 4].plan_class == "bounded"
    assert there[None, 4].bytes == 32 * 4 * 4
    with pytest.raises(AnalysisError, match="no signature 'other'; available:"):
        analyze(tmp_path, signature="other")


def test_functions_with_variables_placed_by_a_strategy() -> None:
    w = tf.Variable(tf.ones([4, 2]), name="w")
    spec = tf.TensorSpec([8, 4], name="x")

    @tf.function  # type: ignore[untyped-decorator]
    def inner(x: Any) -> Any:
        return tf.matmul(x, w)

    @tf.function  # type: ignore[untyped-decorator]
    def step(x: Any) -> Any:
        y = inner(x)
        w.assign_sub(tf.ones([4, 2]) * tf.reduce_sum(y))
        with tf.device(graphs.WORKERS[1]):
            return tf.exp(y)

    plan = analyze(step, args=[spec], strategy=PlacedOn(1, 2))
    concrete = analyze(step.get_concrete_function(spec), strategy=PlacedOn(1, 2))
    assert plan == concrete
    variables = [edge for edge in plan.edges if edge.variable == "w"]
    assert [edge.shape for edge in variables] == [(4, 2)]
    # The variable and its update; y there, its exponential back to an identity of the caller, and the
    # result to where the exponential was made: TensorFlow leaves it there.
    shapes = sorted(edge.shape or () for edge in plan.edges)
    assert shapes == [(4, 2), (4, 2), (8, 2), (8, 2), (8, 2)]
    assert plan.static_share == 1.0


def test_variables_of_a_function_belong_to_the_task_that_runs_it() -> None:
    w = tf.Variable(tf.ones([4]))

    @tf.function  # type: ignore[untyped-decorator]
    def step() -> Any:
        with tf.device(graphs.PS):
            return w * 2.0

    plan = analyze(step, args=[], default_device="/job:worker/task:1")
    there, back, _ = sorted(plan.edges, key=lambda edge: edge.first)
    assert there.source == back.destination == "/job:worker/replica:0/task:1"
    assert there.destination == back.source == "/job:ps/replica:0/task:0"


def test_a_cluster_names_the_tasks() -> None:
    cluster = {"ps": ["a:1", "b:1"], "worker": ["c:1", "d:1", "e:1"]}
    plan = analyze(STEP.graph, fetches=NAMES, feeds=FEEDS, cluster=cluster)
    assert len(plan.tasks) == 5
    assert plan.edges == expected().edges
    with pytest.raises(
        AnalysisError, match=r"worker/replica:0/task:1.* has 1 tasks of job 'worker'"
    ):
        analyze(STEP.graph, fetches=NAMES, cluster={"ps": ["a:1"], "worker": ["c:1"]})


def bad_device() -> Any:
    graph = tf.compat.v1.GraphDef()
    graph.node.add(name="x", op="NoOp", device="worker 1")
    return graph


def unknown_op() -> Any:
    graph = tf.compat.v1.GraphDef()
    graph.node.add(name="x", op="NoSuchOp")
    return graph


def missing_input() -> Any:
    graph = tf.compat.v1.GraphDef()
    graph.node.add(name="x", op="Identity", input=["y"])
    return graph


def two_of_one_name() -> Any:
    graph = tf.compat.v1.GraphDef()
    for _ in range(2):
        graph.node.add(name="x", op="NoOp")
    return graph


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        (42, {}, "a int cannot be analysed: give a tf.Graph"),
        ("/no/such/file", {}, "no such file"),
        (bad_device(), {}, "'worker 1' is not a device"),
        (missing_input(), {}, "node 'x' takes 'y', which is not in the graph"),
        (two_of_one_name(), {}, "two nodes"),
        (unknown_op(), {}, "has no op 'NoSuchOp'"),
        (STEP.graph, {"fetches": ["nothing:0"]}, "no tensor 'nothing:0', so it cannot be fetched"),
        (
            STEP.graph,
            {"fetches": NAMES, "feeds": ["nothing"]},
            "no tensor 'nothing', so it cannot be fed",
        ),
        (STEP.graph, {"batch_size": 0}, "at least 1"),
        (STEP.graph, {"budgets": {"/job:ps/task:7": 1}}, "budget of /job:ps/replica:0/task:7"),
        (STEP.graph, {"budgets": {"/job:ps/task:0": -1}}, "at least 0"),
        (tf.function(lambda x: x), {}, "one graph per signature"),
    ],
)
def test_what_is_wrong_is_told(source: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(AnalysisError, match=message):
        analyze(source, **options)


@pytest.mark.parametrize("content", [b"\xff\xff\xff", b""])
def test_files_that_are_no_graphs(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "graph.pb"
    path.write_bytes(content)
    with pytest.raises(AnalysisError, match=r"graph\.pb: .*GraphDef"):
        analyze(path)
    with pytest.raises(AnalysisError, match="not a SavedModel"):
        analyze(tmp_path)
