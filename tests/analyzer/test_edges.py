# SPDX-License-Identifier: Apache-2.0
"""The edges that are found, against those that TensorFlow itself makes on real servers."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import tensorflow as tf

from graph_analyzer import TransferPlan, analyze, closest
from graph_analyzer.model.plan import ADDED
from graph_analyzer.read import ops
from support import placed_graphs as graphs
from support.placed_graphs import Step
from support.stock_servers import Cluster


def plan_of(step: Step, optimize: bool = False) -> TransferPlan:
    return analyze(step.graph, fetches=step.fetches, feeds=step.feeds, optimize=optimize)


def unnumbered(key: tuple[str, str, str]) -> tuple[str, str, str]:
    """Without the running numbers of nodes that TensorFlow makes of a While."""
    return key[0], key[1], re.sub(r"/_\d+", "/_", key[2])


@pytest.mark.parametrize("optimize", [False, True], ids=["as written", "optimised"])
@pytest.mark.parametrize("name", graphs.STEPS)
def test_edges_are_those_of_tensorflow(cluster: Cluster, name: str, optimize: bool) -> None:
    step = graphs.STEPS[name]()
    plan = plan_of(step, optimize)
    expected = cluster.sent(step, optimize)
    assert expected
    found = {edge.key: int(tf.dtypes.as_dtype(edge.dtype).as_datatype_enum) for edge in plan.edges}
    assert sorted((unnumbered(key), dtype) for key, dtype in found.items()) == sorted(
        (unnumbered(key), dtype) for key, dtype in expected.items()
    )


def test_edges_of_functions_are_those_of_tensorflow(cluster: Cluster) -> None:
    found = cluster.run_function("grpc")
    sent = sorted(unnumbered(tuple(key)) for key in found["sent"])
    assert len(sent) > 8
    planned = sorted(unnumbered(tuple(key)) for key in found["planned"])
    assert planned == sent
    # TensorFlow sends the loop's condition to tasks that take part in nothing else of the loop.
    assert all("/LoopCond/" in name for name in found["not static"])
    assert found["variables"] == ["v0", "v1"]


@pytest.mark.parametrize(
    ("op", "stateful", "blocks", "free"),
    [
        ("_Recv", True, True, False),
        ("Placeholder", False, True, True),
        ("QueueDequeueV2", True, True, False),
        ("ReadVariableOp", True, False, True),
        ("AssignAddVariableOp", True, False, False),
        ("MatMul", False, False, False),
    ],
)
def test_facts_about_operations(op: str, stateful: bool, blocks: bool, free: bool) -> None:
    assert ops.blocks(op, stateful) == blocks
    assert ops.free(op) == free


def test_tensors_of_loops_are_marked(loop_plan: TransferPlan) -> None:
    inside = {edge.name: edge.in_loop for edge in loop_plan.edges}
    assert inside["while/body/_1/mul/ReadVariableOp:0"]

    leaving = [edge for edge in loop_plan.edges if edge.name.startswith("while/exit/")]
    assert leaving
    assert not any(edge.in_loop for edge in leaving)


def test_conditions_that_only_steer_a_loop_are_not_planned() -> None:
    plan = plan_of(graphs.loop(v2=False))
    conditions = [edge for edge in plan.edges if edge.name == "while/LoopCond:0"]
    assert [edge.destination[5] for edge in conditions] == ["p", "w"]
    assert {(edge.plan_class, edge.reason, edge.ring) for edge in conditions} == {
        ("dynamic", ADDED, None)
    }
    told = replace(plan, edges=tuple(edge for edge in plan.edges if edge not in conditions))
    assert not closest(plan, told)


def test_loop_variables_keep_their_shape(loop_plan: TransferPlan) -> None:
    assert {edge.plan_class for edge in loop_plan.edges} == {"static"}
    assert all(edge.shape in ((), (4,)) for edge in loop_plan.edges)


def test_what_follows_an_inner_loop_is_still_in_the_outer() -> None:
    plan = plan_of(graphs.nested_loop())
    edge = next(edge for edge in plan.edges if "after_inner" in edge.name)
    assert edge.in_loop


@pytest.mark.parametrize("v2", [False, True])
def test_loop_variable_that_grows_has_an_unknown_dimension(v2: bool) -> None:
    v1 = tf.compat.v1
    was_v2 = v1.control_flow_v2_enabled()
    (v1.enable_control_flow_v2 if v2 else v1.disable_control_flow_v2)()
    graph = tf.Graph()
    try:
        with graph.as_default(), tf.device(graphs.WORKERS[0]):
            start = tf.zeros([1, 3], name="start")
            _, grown = tf.while_loop(
                lambda turn, value: turn < 3,
                lambda turn, value: (turn + 1, tf.concat([value, value], 0)),
                [0, start],
                shape_invariants=[tf.TensorShape([]), tf.TensorShape([None, 3])],
            )
            with tf.device(graphs.WORKERS[1]):
                used = tf.reduce_sum(grown)
    finally:
        (v1.enable_control_flow_v2 if was_v2 else v1.disable_control_flow_v2)()
    (edge,) = [
        e
        for e in analyze(graph, fetches=[used]).edges
        if e.source.endswith("worker/replica:0/task:0")
    ]
    assert edge.shape == (None, 3)
    assert edge.plan_class == "dynamic"
    assert edge.reason.startswith("dim 0 unknown: loop variable while/")


def test_one_edge_for_each_device_of_a_task() -> None:
    graph = tf.Graph()
    with graph.as_default():
        with tf.device("/job:worker/task:0"):
            x = tf.raw_ops.RandomUniform(shape=[2], dtype=tf.float32, name="x")
        uses = []
        for device in ("CPU:0", "CPU:1"):
            with tf.device(f"/job:worker/task:1/device:{device}"):
                uses += [tf.negative(x), tf.square(x)]
    plan = analyze(graph)
    assert [edge.name for edge in plan.edges] == ["x:0", "x:0@device:CPU:1"]
    assert all(len(edge.consumers) == 2 for edge in plan.edges)


def test_memory_of_a_device_has_a_place_and_an_operation_of_its_own() -> None:
    graph = tf.Graph()
    with graph.as_default():
        with tf.device("/job:worker/task:0/device:GPU:0"):
            tensors = [tf.ones([3]) + float(i) for i in range(2)]
        with tf.device("/job:worker/task:1"):
            tf.add_n(tensors)
    edges = analyze(graph).edges
    assert [edge.plan_class for edge in edges] == ["static"] * 2
    assert {edge.alone for edge in edges} == {"it leaves or enters memory other than the host's"}


def test_control_edges_are_counted_and_not_planned() -> None:
    graph = tf.Graph()
    with graph.as_default():
        with tf.device("/job:worker/task:0"):
            first = tf.no_op("first")
        with tf.device("/job:worker/task:1"), tf.control_dependencies([first]):
            tf.no_op("second")
    plan = analyze(graph)
    assert plan.edges == ()
    assert plan.control_edges == 1
    assert plan.static_share == 0.0
