# SPDX-License-Identifier: Apache-2.0
"""Ways are measured in turns, and summarised by median and percentiles."""

from __future__ import annotations

import pytest

from rdmatensor.bench.turns import Distribution, in_turns, turn_ratios


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


def test_ratios_compare_what_was_measured_in_the_same_turn() -> None:
    assert turn_ratios([2.0, 9.0], [1.0, 3.0]).median == 2.5
    with pytest.raises(ValueError, match="zip"):
        turn_ratios([2.0], [1.0, 3.0])
