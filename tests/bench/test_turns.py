# SPDX-License-Identifier: Apache-2.0
"""Ways are measured in turns, summarised by median and percentiles, and recorded."""

from __future__ import annotations

import pytest

from harness import Bench, in_turns
from record import Distribution, Environment, Run


def test_distribution_interpolates() -> None:
    found = Distribution.of([4.0, 1.0, 2.0, 3.0, 5.0])
    assert (found.count, found.p10, found.median, found.p90) == pytest.approx((5, 1.4, 3.0, 4.6))


def test_distribution_of_one_sample() -> None:
    assert Distribution.of([2.5]) == Distribution(1, 2.5, 2.5, 2.5)


def test_distribution_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="nothing was measured"):
        Distribution.of([])


def test_each_turn_begins_with_the_next_way() -> None:
    order: list[str] = []

    def way(name: str) -> list[float]:
        order.append(name)
        return [float(len(order)), 0.0, 100.0]

    samples = in_turns({name: lambda name=name: way(name) for name in "abc"}, 4)  # type: ignore[misc]
    assert "".join(order) == "abcbcacababc"
    assert samples["a"].turns == [1.0, 6.0, 8.0, 10.0]
    assert len(samples["a"].all) == 12


def test_a_comparison_is_recorded_with_the_rivals_that_are_there() -> None:
    bench = Bench(Run("example", Environment.here()))
    rivals = {"ours": ("UCX", 2.0), "copy": ("nobody", 1.0)}
    ways = {name: lambda: [1.0] for name in ("ours", "UCX", "copy")}
    bench.compare("suite", "case", ways, 2, rivals=rivals, nbytes=8, depth=3)
    assert [(each.way, each.rival, each.target) for each in bench.run.results] == [
        ("ours", "UCX", 2.0),
        ("UCX", "", None),
        ("copy", "", None),
    ]
    assert all(each.nbytes == 8 and len(each.samples) == 2 for each in bench.run.results)
    assert bench.run.results[0].parameters == {"depth": 3}
