# SPDX-License-Identifier: Apache-2.0
"""The plan that is made of a graph beforehand is the one that servers follow when they run it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import pytest
import tensorflow as tf

import graph_analyzer as ga
from graph_analyzer.model.plan import ADDED
from graph_analyzer.place.analyze import DEFAULT_DEVICE
from graph_analyzer.read import sources
from support import placed_graphs as graphs
from support import warm
from support.clusters import STEP_S, within
from support.placed_graphs import Step
from support.stock_servers import Cluster

v1 = tf.compat.v1
BATCH = 4
APPLY = "ResourceApplyGradientDescent"
# What an edge is, how and when it travels, and where it lies.
COMPARED = (
    *("dtype", "shape", "in_loop", "plan_class", "bytes", "first", "last"),
    *("slots", "stride", "ring", "group", "offset"),
)
# Which operation carries it. The analyzer does not know what a task makes of reference variables.
OPERATIONS = ("operation", "alone")
EXCEPTION = "a reference variable, or a part of the graph that another process made"


@pytest.fixture(scope="module")
def servers() -> Iterator[Cluster]:
    """Two parameter servers and two workers."""
    started = Cluster({"ps": 2, "worker": 2}, protocol="grpc+rdma")
    yield started
    started.close()


def addresses(servers: Cluster) -> list[str]:
    return [address for job in servers.addresses.values() for address in job]


def told_by(servers: Cluster, step: Step, optimize: bool) -> ga.TransferPlan:
    """What the servers plan when a session runs the step."""
    config = v1.ConfigProto()
    config.graph_options.rewrite_options.disable_meta_optimizer = not optimize
    config.operation_timeout_in_ms = int(STEP_S * 1000)

    def run() -> ga.TransferPlan:
        with v1.Session(servers.target, graph=step.graph, config=config) as session:
            if step.start is not None:
                session.run(step.start)
            session.run(step.fetches, step.values)
            return ga.live(*addresses(servers))

    return within(2 * STEP_S, run)


def check(
    expected: ga.TransferPlan, told: ga.TransferPlan, compared: tuple[str, ...] = COMPARED
) -> None:
    """One of the graphs that run is the expected one."""
    # The chief is a client: it is not asked.
    receivers = {
        edge.destination
        for edge in expected.edges
        if edge.reason != ADDED and "/job:chief" not in edge.destination
    }
    assert receivers
    assert receivers <= {edge.destination for edge in told.edges}
    difference = ga.closest(expected, told, compared)
    lines = [f"only planned: {edge}" for edge in difference.removed]
    lines += [f"only told: {edge}" for edge in difference.added]
    lines += [
        f"{old.name}: {name} {getattr(old, name)!r} became {getattr(new, name)!r}"
        for old, new in difference.changed
        for name in compared
        if getattr(old, name) != getattr(new, name)
        and not (name in OPERATIONS and new.alone == EXCEPTION)
    ]
    assert not lines, "\n".join(lines)


@pytest.mark.parametrize("optimize", [False, True], ids=["as written", "optimised"])
@pytest.mark.parametrize("name", graphs.STEPS)
def test_sessions(servers: Cluster, name: str, optimize: bool) -> None:
    step = graphs.STEPS[name]()
    expected = ga.analyze(step.graph, fetches=step.fetches, feeds=step.feeds, optimize=optimize)
    check(expected, told_by(servers, step, optimize), COMPARED + OPERATIONS)


def test_function_over_the_tasks_of_a_cluster(servers: Cluster) -> None:
    found = servers.run_function("grpc+rdma")
    told = ga.TransferPlan.from_json(found["told"])
    check(ga.TransferPlan.from_json(found["plan"]), told)


def test_what_was_predicted_travels(servers: Cluster) -> None:
    """Of training steps of Keras models: the bytes each way, and the paths as far as they are certain."""
    found = servers.run_function("grpc+rdma", "support.model_task")
    assert len(found) == 5
    for name, each in found.items():
        predicted, travelled = each["predicted"], each["travelled"]
        for way in (0, 1):
            expected = sum(both[way] for both in predicted.values())
            assert expected == pytest.approx(sum(b[way] for b in travelled.values()), rel=0.01), (
                name
            )
            assert travelled["static"][way] >= 0.99 * predicted["static"][way], name
            most = predicted.get("inline", (0, 0))[way] + 0.01 * expected
            assert travelled["inline"][way] <= most, (name, each)
            assert travelled["dynamic"][way] == travelled["rpc"][way] == 0, name


def keras_model() -> Any:
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((8, 8, 3)),
            layers.Conv2D(4, 3),
            layers.Reshape((6, 24)),
            layers.LSTM(8),
            layers.Dense(10),
        ]
    )


def session_step(model: Any, strategy: ga.PlacedOn) -> Step:
    """The training step of `strategy` as a graph that a session runs, on inputs made by the workers."""
    program = sources.read(model, sources.Request(DEFAULT_DEVICE, strategy, BATCH))
    for node in program.graph.node:
        if node.op == "Placeholder":
            value = tf.zeros(node.attr["shape"].shape, node.attr["dtype"].type)
            node.op = "Const"
            del node.attr["shape"]
            node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(value))
    graph = tf.Graph()
    with graph.as_default():
        tf.graph_util.import_graph_def(program.graph, name="")
        start = [
            tf.raw_ops.AssignVariableOp(
                resource=node.outputs[0],
                value=tf.ones(node.get_attr("shape"), node.get_attr("dtype")),
            )
            for node in graph.get_operations()
            if node.type == "VarHandleOp"
        ]
    updates = [node for node in graph.get_operations() if node.type == APPLY]
    return Step(graph, updates, start=start)


def test_keras_model(servers: Cluster) -> None:
    model, strategy = keras_model(), ga.PlacedOn(ps=2, workers=2)
    expected = ga.analyze(model, strategy=strategy, batch_size=BATCH)
    assert expected.bytes_by_class()["static"] > 0.99 * expected.step_bytes
    check(expected, told_by(servers, session_step(model, strategy), False))


def test_command_shows_the_plan_in_force(servers: Cluster, tmp_path: Path) -> None:
    step = graphs.training()
    expected = ga.analyze(step.graph, fetches=step.fetches, feeds=step.feeds)
    expected.save(tmp_path / "expected.json")
    targets = [word for address in addresses(servers) for word in ("--live", address)]
    command = [warm.python(), "-m", "rdmatensor", "plan"]

    def plan(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "COLUMNS": "200"}
        return subprocess.run(
            [*command, *arguments], env=environment, capture_output=True, text=True, timeout=60
        )

    def run() -> None:
        with v1.Session(servers.target, graph=step.graph) as session:
            session.run(step.start)
            session.run(step.fetches, step.values)
            shown = plan(*targets, "--json", tmp_path / "told.json")
            assert shown.returncode == 0, shown.stderr
            assert "MatMul/ReadVariableOp:0" in shown.stdout
            check(expected, ga.TransferPlan.from_json((tmp_path / "told.json").read_bytes()))
            compared = plan(tmp_path / "expected.json", *targets)
            assert compared.returncode == 0, compared.stderr
            assert "no difference" in compared.stdout

    within(2 * STEP_S, run)
