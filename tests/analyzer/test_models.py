# SPDX-License-Identifier: Apache-2.0
"""Real models over two parameter servers and two workers."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from graph_analyzer import AnalysisError, PlacedOn, analyze
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
