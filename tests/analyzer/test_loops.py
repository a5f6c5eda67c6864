# SPDX-License-Identifier: Apache-2.0
"""How often what is sent in a loop is sent, and what of it finds a place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf
from rich.console import Console

from graph_analyzer import AnalysisError, Edge, Options, PlacedOn, TransferPlan, analyze, predict
from graph_analyzer.report.html import page
from graph_analyzer.report.text import report
from support import keras_models as models
from support.placed_graphs import PS, WORKERS

Body = Callable[[Any], Any]


def sent(loop: Callable[[Body], Any], **arguments: Any) -> tuple[Edge, TransferPlan]:
    """Plan a loop of a worker whose body adds what the parameter server makes, and return that edge."""
    graph = tf.Graph()
    with graph.as_default():

        def far(value: Any) -> Any:
            with tf.device(PS):
                made = tf.random.uniform([64], name="made")
            return value + made

        with tf.device(WORKERS[0]):
            result = loop(far)
    plan = analyze(graph, fetches=[result], **arguments)
    (edge,) = [edge for edge in plan.edges if "made/" in edge.name and edge.source[5:7] == "ps"]
    return edge, plan


def counted(limit: Callable[[], Any], start: int = 0, step: Any = lambda i: i + 1) -> Any:
    def loop(far: Body) -> Any:
        end = limit()
        return tf.while_loop(
            lambda i, x: i < end, lambda i, x: (step(i), far(x)), [start, tf.zeros([64])]
        )[1]

    return loop


def rows(count: Any) -> Any:
    return tf.shape(tf.random.uniform([count, 3]))[0]


def nested(far: Body) -> Any:
    def outer(i: Any, x: Any) -> Any:
        return i + 1, tf.while_loop(lambda j, y: j < 3, lambda j, y: (j + 1, far(y)), [0, x])[1]

    return tf.while_loop(lambda i, x: i < 4, outer, [0, tf.zeros([64])])[1]


def bounded(far: Body) -> Any:
    """A loop that may end earlier."""
    return tf.while_loop(
        lambda x: tf.reduce_sum(x) < 9.0, lambda x: (far(x),), [tf.zeros([64])],
        maximum_iterations=11,
    )[0]  # fmt: skip


def mapped(far: Body) -> Any:
    return tf.map_fn(far, tf.zeros([6, 64]))


def after_another(far: Body) -> Any:
    """A loop that runs as often as another one counted."""
    turns = tf.while_loop(lambda i: i < 100, lambda i: (i * 3,), [1])[0]
    return counted(lambda: turns // 27)(far)


@pytest.mark.parametrize(
    ("loop", "times"),
    [
        (counted(lambda: 5), 5),
        (counted(lambda: 0), 0),
        (counted(lambda: 100, 1, lambda i: i * 2), 7),
        (counted(lambda: tf.minimum(rows(9), 12)), 9),
        (counted(lambda: tf.cast(rows(8) / 2, tf.int32)), 4),
        (nested, 12),
        (bounded, 11),
        (mapped, 6),
        (after_another, 9),
    ],
)
def test_iterations_are_counted_where_the_graph_tells(loop: Any, times: int) -> None:
    edge, plan = sent(loop)
    assert edge.iterations == times
    assert plan.uncounted == 0
    conditions = [e for e in plan.edges if "LoopCond" in e.name]
    assert all((e.iterations or 0) > times / 4 for e in conditions)
    assert sent(loop, iterations=50)[0].iterations == times


@pytest.mark.parametrize(
    "loop",
    [
        counted(lambda: tf.random.uniform([], maxval=9, dtype=tf.int32)),
        counted(lambda: rows(tf.random.uniform([], maxval=9, dtype=tf.int32))),
        counted(lambda: 5, 0, lambda i: i * 1),
    ],
    ids=["random", "of unknown size", "for ever"],
)
def test_iterations_that_the_graph_does_not_tell_are_given(loop: Any) -> None:
    edge, plan = sent(loop)
    assert edge.iterations is None
    assert plan.uncounted >= 1
    assert "give --iterations" in shown(plan)
    assert edge.step_bytes == 256
    known, again = sent(loop, iterations=6)
    assert (known.iterations, known.step_bytes, again.uncounted) == (6, 6 * 256, 0)
    assert "give --iterations" not in shown(again)
    with pytest.raises(AnalysisError, match="iterations must be at least 1"):
        sent(loop, iterations=0)


def shown(plan: TransferPlan) -> str:
    console = Console(width=10_000)
    with console.capture() as capture:
        console.print(report(plan))
    return capture.get()


def test_a_sender_that_runs_ahead_finds_no_place() -> None:
    """What the server makes needs nothing of the worker, so it is sent long before it is used."""
    edge, plan = sent(counted(lambda: 20))
    assert (edge.slots, edge.paced, edge.placed_sends) == (4, False, 4)
    assert edge.paths() == {"static": 4 * 256, "inline": 16 * 256}
    assert "static, 20 times in a loop, 4 places" in shown(plan)
    assert "run ahead of their receiver, which has 4 places for each" in shown(plan)
    assert "at least 19.9% of the bytes static" in shown(plan).splitlines()[0]
    assert 'id="loops"' in page(plan)
    more = sent(counted(lambda: 20), options=Options(loop_slots=20))[0]
    assert more.paths() == {"static": 20 * 256}
    large = sent(counted(lambda: 20))[1]
    assert large == TransferPlan.from_json(large.to_json())


def test_a_sender_that_waits_for_its_receiver_finds_places() -> None:
    graph = tf.Graph()
    with graph.as_default():

        def body(i: Any, x: Any) -> Any:
            with tf.device(PS):
                made = tf.multiply(x, 2.0, name="made")
            return i + 1, made + 1.0

        with tf.device(WORKERS[0]):
            result = tf.while_loop(lambda i, x: i < 20, body, [0, tf.zeros([64])])[1]
    plan = analyze(graph, fetches=[result])
    assert len(plan.edges) == 3  # there and back, and the condition
    there_and_back = [edge for edge in plan.edges if "LoopCond" not in edge.name]
    assert [(edge.paced, edge.placed_sends) for edge in there_and_back] == [(True, 20)] * 2


def test_recurrent_models_count_their_steps() -> None:
    """The weights that a layer reads in each step travel as often."""
    import keras

    model = models.recurrent(keras.layers.LSTM)
    plan = analyze(model, strategy=PlacedOn(1, 1), batch_size=4)
    cell = 4 * sum(int(tf.size(v.value)) for v in model.trainable_variables[:3])
    read = sum(edge.step_bytes for edge in plan.edges if "/job:ps" in edge.source)
    assert read >= models.STEPS * cell
    assert predict(plan).transfer_seconds >= models.STEPS * cell / 12.5e9


def test_nothing_that_travels_is_not_static() -> None:
    graph = tf.Graph()
    with graph.as_default(), tf.device(WORKERS[0]):
        tf.random.uniform([3])
    alone = analyze(graph)
    assert alone.static_share == 0.0
    assert "nothing travels between tasks: everything runs on worker:0" in shown(alone)
    with graph.as_default():
        text = tf.strings.as_string(tf.random.uniform([3]))
        with tf.device(PS):
            tf.strings.length(text, name="length")
    unknown = analyze(graph)
    assert unknown.static_share == 0.0
    assert shown(unknown).startswith("1 tensor per step, 1 of unknown size")
    for plan in (alone, unknown):
        assert "100.0%" not in shown(plan) and "100.0%" not in page(plan)
