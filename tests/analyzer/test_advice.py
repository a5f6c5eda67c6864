# SPDX-License-Identifier: Apache-2.0
"""Predicted times, hot spots and advice, on plans whose answer is known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
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
from graph_analyzer.model.following import moved
from graph_analyzer.model.plan import Variable
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


K = 100_000


def test_unknown_batches_are_to_be_fixed() -> None:
    reason = "dim 0 unknown: placeholder x"
    fields = {"shape": (None,), "plan_class": "bounded", "reason": reason}
    advice = only(plan_of(edge("a", W0, W1, K, **fields), edge("b", W1, W0, 2 * K, **fields)))
    assert (advice.kind, advice.bytes, advice.edges) == ("batch", 3 * K, ("a", "b"))
    assert advice.text.startswith(
        "2 tensors cannot be static because dim 0 of placeholder x is unknown"
    )
    assert advise(plan_of(edge("a", W0, W1, 10, **fields))) == []  # too small to matter
    assert only(plan_of(edge("a", W0, W1, 0, **fields))).kind == "batch"  # perhaps large


def read(name: str, task: str, size: int) -> list[Edge]:
    return [edge(f"{name}{worker}", task, worker, size, variable=name) for worker in (W0, W1)]


def test_one_large_variable_is_to_be_split() -> None:
    advice = only(plan_of(*read("big", PS0, 10 * K), *read("small", PS1, K)))
    assert advice.kind == "split"
    assert "ps:0 carries 2 MB per step: split big, which is 2 MB of it, over 2 tasks" in advice.text
    assert advise(plan_of(*read("big", PS0, 100), *read("small", PS1, 5))) == []


def test_variables_of_one_task_are_to_be_dealt_out_by_bytes() -> None:
    plan = plan_of(*(e for n in range(4) for e in read(f"v{n}", PS0, K)), *read("w", PS1, 1))
    advice = only(plan)
    assert advice.kind == "spread"
    assert "--spread bytes" in advice.text
    before, after = advice.seconds
    assert after < 0.6 * before == pytest.approx(0.6 * predict(plan).seconds)


def test_one_of_many_variables_is_to_be_moved() -> None:
    """Where variables are of equal size, but not all of them travel."""
    held = [*read("a", PS0, K), *read("c", PS0, K)]
    variables = tuple(
        Variable(name, task, K) for name, task in (("a", PS0), ("b", PS1), ("c", PS0), ("d", PS1))
    )
    advice = only(replace(plan_of(*held), variables=variables))
    assert advice.kind == "move"
    assert advice.text.startswith("ps:0 carries 400 KB per step: move a (200 KB of it) to ps:1")
    assert advice.bytes == 2 * K


def test_a_move_that_only_moves_the_bottleneck_is_not_advised() -> None:
    """What changes a variable moves with it: gradients of the one that is read less are larger."""
    plan = plan_of(
        *read("a", PS0, 4 * K),
        *read("b", PS1, 3 * K),
        edge("ga", W0, PS0, 8 * K, updates=("a",)),
        edge("gb", W0, PS1, 8 * K, updates=("b",)),
    )
    assert [advice.kind for advice in advise(plan)] in ([], ["split"])
    after = moved(plan, {"a": PS1})
    assert after.traffic()[PS1] == (14 * K, 16 * K)
    assert after.traffic()[PS0] == (0, 0)


def test_a_single_parameter_server_is_to_be_spread() -> None:
    plan = plan_of(*read("a", PS0, K), *read("b", PS0, K), tasks=(PS0, W0, W1))
    assert (only(plan).kind, only(plan).bytes) == ("spread", 4 * K)
    assert "over two tasks" in only(plan).text
    # Where the workers are as busy, it would not help.
    alone = plan_of(edge("a", PS0, W0, K, variable="a"), tasks=(PS0, W0, W1))
    assert advise(alone) == []


def test_rows_are_to_be_looked_up_at_the_server() -> None:
    table = [replace(each, rows=4000) for each in read("table", PS0, 50 * K)]
    advice = next(a for a in advise(plan_of(*table)) if a.kind == "rows")
    assert (
        "table travels whole (10 MB per step), and its receivers take rows of it (8 KB)"
        in advice.text
    )
    before, after = advice.seconds or (0.0, 0.0)
    assert 0 < after < before / 10
    some = [table[0], replace(table[1], rows=None)]
    assert "rows" not in [advice.kind for advice in advise(plan_of(*some))]


def test_variables_in_loops_are_told() -> None:
    fields: dict[str, Any] = {"in_loop": True, "iterations": 8, "slots": 4, "variable": "w"}
    found = {a.kind: a for a in advise(plan_of(edge("a", PS0, W0, K, **fields)))}
    assert found["loop"].bytes == 8 * K
    assert "read them before the loop (100 KB instead of 800 KB)" in found["loop"].text
    assert "RDMATENSOR_PLAN_SLOTS=4," in found["slots"].text
    paced = plan_of(edge("a", PS0, W0, K, paced=True, **fields))
    assert "slots" not in [advice.kind for advice in advise(paced)]
    other = {**fields, "variable": ""}
    assert "loop" not in [a.kind for a in advise(plan_of(edge("a", PS0, W0, K, **other)))]


def test_a_budget_that_is_too_small_is_told() -> None:
    import keras

    model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(64)])
    plan = analyze(
        model, strategy=PlacedOn(1, 1), batch_size=4, budgets={"/job:worker/task:0": 1024}
    )
    advice = next(advice for advice in advise(plan) if advice.kind == "budget")
    assert "RDMATENSOR_PLAN_LIMIT there by about 32.8 KB" in advice.text


def test_variables_that_xla_would_read_at_another_task_are_told() -> None:
    import keras

    layers = [keras.Input((8, 8, 4)), keras.layers.Conv2D(4, 3, groups=2)]
    plan = analyze(keras.Sequential(layers), strategy=PlacedOn(ps=1, workers=1), batch_size=2)
    (told,) = [each.text for each in advise(plan) if "of type resource" in each.text]
    assert "TensorFlow refuses to run what XLA compiles" in told
    plain = replace(plan, edges=tuple(e for e in plan.edges if e.dtype != "resource"))
    assert not [each for each in advise(plain) if "resource" in each.text]
