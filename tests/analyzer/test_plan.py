# SPDX-License-Identifier: Apache-2.0
"""Plans as values: classes, places, JSON, differences."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
import tensorflow as tf

from graph_analyzer import AnalysisError, Options, TransferPlan, analyze, closest, diff, join
from support import placed_graphs as graphs


def test_classes_and_reasons(plan: TransferPlan) -> None:
    found = {
        edge.name: edge for edge in plan.edges if edge.source.endswith("worker/replica:0/task:0")
    }
    x = found["x:0"]
    assert (x.plan_class, x.shape, x.bytes) == ("bounded", (None, 64), 16 * 64 * 4)
    assert x.reason == "dim 0 unknown: placeholder x"
    w = next(edge for edge in plan.edges if edge.name == "MatMul/ReadVariableOp:0")
    assert (w.plan_class, w.reason, w.bytes, w.variable) == ("static", "", 64 * 32 * 4, "w")
    assert {edge.variable for edge in plan.edges if "/job:ps" in edge.source} == {"w", "bias"}


def test_without_a_bound_the_batch_makes_tensors_dynamic() -> None:
    step = graphs.training(batch=None)
    plan = analyze(step.graph, fetches=step.fetches, feeds=step.feeds)
    (x,) = [edge for edge in plan.edges if edge.name == "x:0"]
    assert (x.plan_class, x.bytes, x.offset) == ("dynamic", 0, None)
    assert plan.unknown >= 1
    assert plan.bytes_by_class()["dynamic"] == 0


def test_strings_go_by_rpc() -> None:
    step = graphs.conditional()
    plan = analyze(step.graph, fetches=step.fetches, feeds=step.feeds)
    (text,) = [edge for edge in plan.edges if edge.name == "AsString:0"]
    assert (text.plan_class, text.dtype, text.ring) == ("rpc", "string", None)


def test_unknown_ranks_name_their_origin() -> None:
    graph = tf.Graph()
    with graph.as_default():
        with tf.device(graphs.WORKERS[0]):
            x = tf.compat.v1.placeholder(tf.float32, None, "anything")
            y = tf.nn.relu(x)
            found = tf.where(tf.compat.v1.placeholder(tf.bool, [4], "mask"), name="found")
        with tf.device(graphs.WORKERS[1]):
            tf.square(y)
            tf.negative(found)
    reasons = {edge.reason for edge in analyze(graph).edges}
    assert reasons == {"rank unknown: placeholder anything", "dim 0 unknown: Where found"}


def test_budgets_are_kept(plan: TransferPlan) -> None:
    step = graphs.training(batch=None)
    memory = sum(link.bytes for link in plan.links if "worker/replica:0/task:1" in link.destination)
    limited = analyze(
        step.graph, fetches=step.fetches, feeds=step.feeds, batch_size=16,
        budgets={"/job:worker/task:1": memory - 1},
    )  # fmt: skip
    held = sum(k.bytes for k in limited.links if "worker/replica:0/task:1" in k.destination)
    assert held < memory
    found = diff(plan, limited)
    assert found.changed
    assert not (found.added or found.removed)
    assert {edge.plan_class for _, edge in found.changed} == {"dynamic"}


def test_places_of_a_link_do_not_overlap(plan: TransferPlan) -> None:
    for link in plan.links:
        here = [
            e for e in plan.edges if (e.source, e.destination) == (link.source, link.destination)
        ]
        taken = sorted(
            (e.offset + slot * (e.stride or 0), e.bytes)
            for e in here
            if e.offset is not None
            for slot in range(e.slots)
        )
        ends = [offset + size for offset, size in taken]
        assert all(end <= offset for end, (offset, _) in zip(ends, taken[1:], strict=False))
        assert not ends or ends[-1] <= link.bytes


def test_json_round_trip(plan: TransferPlan, loop_plan: TransferPlan) -> None:
    for one in (plan, loop_plan):
        text = one.to_json()
        assert TransferPlan.from_json(text) == one
        assert TransferPlan.from_json(text).to_json() == text


def test_a_server_may_tell_less(plan: TransferPlan) -> None:
    document = json.loads(plan.to_json())
    del document["control_edges"]
    for row in document["edges"]:
        del row["variable"]
        del row["consumers"]
        del row["graph"]
        row["dtype"] = {"float32": "float"}.get(row["dtype"], row["dtype"])
    document["edges"].reverse()
    assert not diff(plan, TransferPlan.from_json(json.dumps(document)))


def test_servers_tell_what_they_receive_in_each_graph(plan: TransferPlan) -> None:
    """Plans of three servers that run the graph, and one of them another graph besides."""
    mine = replace(plan, edges=tuple(replace(edge, graph="7") for edge in plan.edges))
    parts = [mine.only(destinations=[task]) for task in plan.tasks]
    other = tuple(replace(edge, graph="8", name=f"other/{edge.name}") for edge in parts[1].edges)
    parts[1] = replace(parts[1], edges=(*parts[1].edges, *other))
    assert {link.destination for link in parts[1].links} == {plan.tasks[1]}
    whole = join(parts)
    assert whole.graphs == ("7", "8")
    assert len(whole.edges) == len(plan.edges) + len(other)
    assert sorted(whole.links, key=str) == sorted(plan.links, key=str)
    assert not diff(plan, whole.only(graph="7"))
    assert not closest(plan, whole)
    assert not closest(plan, parts[1])
    assert closest(plan, parts[1].only(graph="8"))
    with pytest.raises(AnalysisError, match="run a step"):
        closest(plan, plan.only(graph="9"))


def damage(**changes: Any) -> Any:
    def change(document: dict[str, Any]) -> None:
        for path, value in changes.items():
            *parents, last = path.split("__")
            part: Any = document
            for name in parents:
                part = part[int(name)] if name.isdigit() else part[name]
            part[last] = value

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (damage(version=2), "version 1 .version: 2.: write and read it with the same"),
        (damage(edges__0__bytes="4"), "bytes is '4'"),
        (damage(edges__0__in_loop=1), "in_loop is 1"),
        (damage(edges__0__class="fast"), "class 'fast'"),
        (damage(edges__0__shape=[1.5]), "1.5 is not a whole number"),
        (damage(edges__0__source="/job:ps/replica:0/task:9"), "not among the tasks"),
        (damage(links=[{}]), "damaged transfer plan"),
        (damage(tasks=7), "damaged transfer plan"),
    ],
)
def test_damaged_plans_are_refused(plan: TransferPlan, change: Any, message: str) -> None:
    document = json.loads(plan.to_json())
    change(document)
    with pytest.raises(AnalysisError, match=message):
        TransferPlan.from_json(json.dumps(document))


@pytest.mark.parametrize("text", ["", "[]", "{}", "null", '{"version": 1}'])
def test_what_is_no_plan_is_refused(text: str) -> None:
    with pytest.raises(AnalysisError, match="transfer plan"):
        TransferPlan.from_json(text)


def test_differences(plan: TransferPlan) -> None:
    assert not diff(plan, plan)
    first, second, *others = plan.edges
    changed = replace(second, dtype="float64")
    found = diff(plan, replace(plan, edges=(changed, *others)))
    assert found.removed == (first,)
    assert found.changed == ((second, changed),)
    assert diff(replace(plan, edges=plan.edges[1:]), plan).added == (first,)
    moved = replace(plan, edges=tuple(replace(edge, offset=0) for edge in plan.edges))
    assert not diff(plan, moved)
    assert diff(plan, moved, ["offset"])


def test_numbers_of_lowered_loops_do_not_count(loop_plan: TransferPlan) -> None:
    shifted = [
        replace(edge, name=edge.name.replace("exit/_", "exit/_1")) for edge in loop_plan.edges
    ]
    assert tuple(shifted) != loop_plan.edges
    assert not diff(loop_plan, replace(loop_plan, edges=tuple(shifted)))
    longer = [replace(edge, shape=(5,)) if "exit" in edge.name else edge for edge in shifted]
    assert diff(loop_plan, replace(loop_plan, edges=tuple(longer))).changed


def test_options_are_those_of_the_planner() -> None:
    step = graphs.training()
    options = Options(slots=3, fuse_bytes=0)
    plan = analyze(step.graph, fetches=step.fetches, feeds=step.feeds, options=options)
    assert plan.options == options
    assert {edge.slots for edge in plan.edges if edge.ring is not None} == {3}
    assert {edge.group for edge in plan.edges} == {None}


def test_tensorflow_is_imported_when_it_is_needed() -> None:
    code = "import sys, graph_analyzer, graph_analyzer.cli; sys.exit('tensorflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
