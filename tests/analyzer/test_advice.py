# SPDX-License-Identifier: Apache-2.0
"""Predicted times, hot spots and advice, on plans whose answer is known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from graph_analyzer import (
    AnalysisError,
    Edge,
    Network,
    Options,
    PlacedOn,
    TransferPlan,
    advise,
    analyze,
    predict,
)
from graph_analyzer.report.advice import hot_spots

PS0, PS1, W0, W1 = (
    f"/job:{job}/replica:0/task:{task}" for job in ("ps", "worker") for task in (0, 1)
)


def edge(name: str, source: str, destination: str, size: int, **fields: Any) -> Edge:
    values: dict[str, Any] = {
        "dtype": "uint8", "shape": (size,), "in_loop": False, "plan_class": "static", "reason": "",
        "slots": 2, "ring": 0, "group": None, "offset": 0, "stride": size, "first": 0, "last": 0,
    }  # fmt: skip
    return Edge(
        name=name, source=source, destination=destination, bytes=size, **{**values, **fields}
    )


def plan_of(*edges: Edge, tasks: Sequence[str] = (PS0, PS1, W0, W1)) -> TransferPlan:
    return TransferPlan(tuple(tasks), Options(), (), tuple(sorted(edges, key=lambda e: e.key)))


def only(plan: TransferPlan) -> Any:
    (advice,) = advise(plan)
    return advice


def test_the_fullest_port_and_the_rounds_make_the_time() -> None:
    plan = plan_of(
        edge("a", PS0, W0, 1000),
        edge("b", PS0, W1, 500),
        edge("c", W0, PS0, 400, first=1),
        edge("d", W0, PS1, 300, first=2, plan_class="dynamic"),
    )
    cost = predict(plan, Network(bandwidth=1e3, latency=0.1))
    assert cost.busiest == PS0
    assert cost.transfer_seconds == pytest.approx(1.5)
    assert cost.latency_seconds == pytest.approx(0.1 + 0.1 + 0.3)
    assert cost.seconds == pytest.approx(2.0)
    assert cost.rounds == 3
    assert cost.link_seconds[W0, PS1] == pytest.approx(0.3)


def test_loops_count_as_often_as_is_said() -> None:
    plan = plan_of(edge("a", PS0, W0, 1000, in_loop=True))
    assert predict(plan, Network(1e3, 0.0), iterations=5).seconds == pytest.approx(5.0)


def test_nothing_takes_no_time() -> None:
    cost = predict(plan_of())
    assert (cost.seconds, cost.busiest, cost.rounds) == (0.0, "", 0)


def test_networks_have_a_bandwidth() -> None:
    with pytest.raises(AnalysisError, match="above 0"):
        Network(bandwidth=0)


def test_hot_spots_are_sorted_by_traffic() -> None:
    spots = hot_spots(plan_of(edge("a", PS0, W0, 30), edge("b", PS1, W0, 10)))
    assert [(spot.task, spot.share) for spot in spots[:2]] == [(W0, 0.5), (PS0, 0.375)]
    assert (spots[0].sent, spots[0].received) == (0, 40)


def test_a_balanced_static_plan_needs_no_advice() -> None:
    assert advise(plan_of(*(edge("a", ps, w, 10) for ps in (PS0, PS1) for w in (W0, W1)))) == []


def test_unknown_batches_are_to_be_fixed() -> None:
    reason = "dim 0 unknown: placeholder x"
    fields = {"shape": (None,), "plan_class": "bounded", "reason": reason}
    advice = only(plan_of(edge("a", W0, W1, 10, **fields), edge("b", W1, W0, 20, **fields)))
    assert (advice.kind, advice.bytes, advice.edges) == ("batch", 30, ("a", "b"))
    assert advice.text.startswith(
        "2 tensors cannot be static because dim 0 of placeholder x is unknown"
    )


def test_one_large_variable_is_to_be_split() -> None:
    plan = plan_of(*(edge(f"read{w}", PS0, w, 100, variable="big") for w in (W0, W1)),
                   *(edge(f"small{w}", PS1, w, 5, variable="small") for w in (W0, W1)))  # fmt: skip
    assert only(plan).kind == "split"
    assert "ps:0 carries 1.9 times its job's mean: split big, which is 200 B" in only(plan).text


def test_one_of_many_variables_is_to_be_moved() -> None:
    held = [edge(f"v{n}{w}", PS0, w, 10, variable=f"v{n}") for n in range(4) for w in (W0, W1)]
    advice = only(plan_of(*held))
    assert advice.kind == "move"
    assert advice.text.endswith("to ps:1")
    assert advice.bytes == 20


def test_a_single_parameter_server_is_to_be_spread() -> None:
    plan = plan_of(edge("a", PS0, W0, 10), edge("b", PS0, W1, 10), tasks=(PS0, W0, W1))
    assert (only(plan).kind, only(plan).bytes) == ("spread", 20)
    assert "100% of all bytes" in only(plan).text


def test_tensors_in_loops_are_told() -> None:
    advice = only(plan_of(*(edge("a", s, d, 10, in_loop=True) for s, d in ((W0, W1), (W1, W0)))))
    assert (advice.kind, advice.bytes) == ("loop", 20)


def test_a_budget_that_is_too_small_is_told() -> None:
    import keras

    model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(64)])
    plan = analyze(
        model, strategy=PlacedOn(1, 1), batch_size=4, budgets={"/job:worker/task:0": 1024}
    )
    advice = next(advice for advice in advise(plan) if advice.kind == "budget")
    assert "RDMATENSOR_PLAN_LIMIT there by about 32.8 KB" in advice.text
