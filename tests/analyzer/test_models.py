# SPDX-License-Identifier: Apache-2.0
"""Real models over two parameter servers and two workers."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from graph_analyzer import AnalysisError, PlacedOn, TransferPlan, advise, analyze
from graph_analyzer.model.following import dealt_by_bytes
from support import keras_models as models

CLUSTER = PlacedOn(ps=2, workers=2)


@pytest.mark.parametrize("name", models.MODELS)
def test_with_a_fixed_batch_all_is_static(name: str) -> None:
    model = models.MODELS[name]()
    plan = analyze(model, strategy=CLUSTER, batch_size=8)
    assert plan.unknown == 0
    assert plan.bytes_by_class()["static"] >= 0.99 * plan.step_bytes
    # Each worker reads what is trained, and sends as much back. Tokens' rows travel twice over: read whole,
    # written as far as they occur.
    trained = sum(4 * int(np.prod(variable.shape)) for variable in model.trainable_variables)
    read = sum(edge.bytes for edge in plan.edges if "/job:ps" in edge.source)
    written = sum(edge.bytes for edge in plan.edges if "/job:ps" in edge.destination)
    assert read >= 2 * trained * 0.99
    if name != "transformer block":
        assert written >= 2 * trained * 0.99


def test_without_a_batch_only_activations_are_unknown() -> None:
    model = keras.Sequential([keras.Input((16,)), keras.layers.Dense(8)])
    plan = analyze(model, strategy=CLUSTER)
    assert plan.static_share == 1.0
    assert plan.unknown == 0


def test_variables_are_dealt_out_in_turn_or_by_size() -> None:
    assert PlacedOn(2, 1).devices([10, 10, 10])[::2] == PlacedOn(2, 1).devices([10])[:1] * 2
    tasks = [
        device.split("/")[3] for device in PlacedOn(2, 1, "bytes").devices([30, 10, 10, 10, 5])
    ]
    assert tasks == ["task:0", "task:1", "task:1", "task:1", "task:0"]


def test_variables_keep_their_names() -> None:
    model = keras.Sequential([keras.Input((16,)), keras.layers.Dense(8, name="last")])
    plan = analyze(model, strategy=CLUSTER, batch_size=4)
    found = {edge.variable for edge in plan.edges if "/job:ps" in edge.source}
    assert found == {variable.path for variable in model.variables}
    assert len(found) == 2


class Shift(keras.layers.Layer):  # type: ignore[misc]
    """Adds a constant that was made eagerly, and counts how often it is traced."""

    traced = 0

    def __init__(self) -> None:
        super().__init__()
        self.table = tf.constant(np.ones((64, 64), "float32"))

    def call(self, x: Any) -> Any:
        self.traced += 1
        return x + self.table


def test_each_worker_has_its_own_constants_and_tables() -> None:
    """They name no task, so they do not travel; and they are no variables that servers hold."""
    layers, shift = keras.layers, Shift()
    words = keras.Input((1,), dtype="string")
    numbers = layers.StringLookup(vocabulary=["a", "b"])(words)
    embedded = layers.Reshape((1, 64))(layers.Embedding(4, 64)(numbers))
    model = keras.Model(words, layers.Dense(4)(shift(layers.Dense(64)(embedded))))
    before = shift.traced
    plan = analyze(model, strategy=PlacedOn(ps=2, workers=3), batch_size=8)
    assert shift.traced == before + 1
    assert {(edge.source[5:7], edge.destination[5:7]) for edge in plan.edges} == {
        ("ps", "wo"),
        ("wo", "ps"),
    }
    assert sorted(v.name for v in plan.variables) == sorted(v.path for v in model.variables)
    # In turn, whatever else the model has.
    assert [v.task[-1] for v in plan.variables] == ["0", "1", "0", "1", "0"]
    read = [edge for edge in plan.edges if "/job:ps" in edge.source]
    assert {edge.variable for edge in read} - {""} == {v.name for v in plan.variables}
    assert not any(edge.shape == (64, 64) and not edge.variable for edge in read)


class Own(keras.Model):  # type: ignore[misc]
    """A subclassed model, which has no inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = keras.layers.Dense(16), keras.layers.Dense(4)

    def call(self, x: Any) -> Any:
        return self.last(self.first(x))


def test_subclassed_models() -> None:
    called, built, new = Own(), Own(), Own()
    called(np.zeros((1, 8), "float32"))
    built.build((None, 8))
    built.first.build((None, 8))
    built.last.build((None, 16))
    for model in (called, built):
        plan = analyze(model, strategy=CLUSTER, batch_size=8)
        assert sum(variable.bytes for variable in plan.variables) == 4 * (8 * 16 + 16 + 16 * 4 + 4)
    with pytest.raises(AnalysisError, match="call it once"):
        analyze(new, strategy=CLUSTER, batch_size=8)
    given = analyze(new, strategy=CLUSTER, batch_size=8, args=[tf.TensorSpec([None, 8])])
    assert given.bytes_by_link() == plan.bytes_by_link()


def test_following_advice_gives_the_plan_that_was_compared() -> None:
    layers = keras.layers
    model = keras.Sequential(
        [keras.Input((40,)), layers.Dense(64), layers.BatchNormalization(), layers.Dense(30)]
    )
    turn = analyze(model, strategy=CLUSTER, batch_size=8)
    servers = sorted(task for task in turn.tasks if "/job:ps" in task)
    followed = dealt_by_bytes(turn, servers)
    again = analyze(model, strategy=PlacedOn(2, 2, "bytes"), batch_size=8)
    assert followed.variables == again.variables != turn.variables
    assert followed.bytes_by_link() == again.bytes_by_link() != turn.bytes_by_link()
    assert TransferPlan.from_json(turn.to_json()) == turn


def test_tables_that_travel_whole_are_told() -> None:
    layers = keras.layers
    tokens = keras.Input((10,), dtype="int32")
    flat = layers.Flatten()(layers.Embedding(20_000, 32)(tokens))
    plan = analyze(keras.Model(tokens, layers.Dense(1)(flat)), strategy=CLUSTER, batch_size=8)
    advice = next(advice for advice in advise(plan) if advice.kind == "rows")
    assert advice.text.startswith("embedding")
    assert "/embeddings travels whole (5.12 MB per step)" in advice.text
    rows = {edge.rows for edge in plan.edges if edge.variable.endswith("embeddings")}
    assert rows == {8 * 10 * 32 * 4 + 8 * 10 * 4}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: analyze(models.recurrent(keras.layers.GRU)), "strategy=PlacedOn"),
        (
            lambda: analyze(keras.Sequential([keras.layers.Dense(1)]), strategy=CLUSTER),
            "keras.Input",
        ),
        (lambda: PlacedOn(0, 1), "at least one"),
        (lambda: PlacedOn(1, 1, "evenly"), "round_robin"),  # type: ignore[arg-type]
    ],
)
def test_what_cannot_be_placed_is_told(make: object, message: str) -> None:
    assert callable(make)
    with pytest.raises(AnalysisError, match=message):
        make()
