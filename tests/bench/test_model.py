# SPDX-License-Identifier: Apache-2.0
"""The cost model finds what made the points, and says how far off it is."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from model import (
    Costs,
    Network,
    Point,
    busiest_share,
    fit,
    left_out,
    predict,
)
from paper_models import MODELS


def _points(costs: Costs, noise: float = 0.0, seed: int = 0) -> list[Point]:
    """Steps of all models with one to three workers, as `costs` have them."""
    random = np.random.default_rng(seed)
    points = []
    for model in MODELS.values():
        for workers in (1, 2, 3):
            tensors, nbytes = 2 * workers * model.count, 2 * workers * model.nbytes
            for compute_s in (0.0, 0.1):
                seconds = costs.seconds(tensors, nbytes, compute_s)
                seconds *= 1 + noise * random.uniform(-1, 1)
                points.append(Point(model.name, workers, tensors, nbytes, compute_s, seconds))
    return points


costs_of_any_way = st.builds(
    Costs,
    step_s=st.floats(1e-4, 5e-2),
    tensor_s=st.floats(1e-6, 1e-4),
    byte_s=st.floats(1e-11, 2e-9),
)


@given(costs_of_any_way)
def test_exact_points_give_the_costs_back(costs: Costs) -> None:
    found = fit(_points(costs))
    assert found.step_s == pytest.approx(costs.step_s, rel=1e-4)
    assert found.tensor_s == pytest.approx(costs.tensor_s, rel=1e-4)
    assert found.byte_s == pytest.approx(costs.byte_s, rel=1e-4)
    assert max(map(abs, left_out(_points(costs)))) < 1e-6


@given(costs_of_any_way, st.integers(0, 1 << 30))
def test_noise_moves_predictions_no_further_than_itself(costs: Costs, seed: int) -> None:
    points = _points(costs, 0.05, seed)
    found = fit(points)
    for clean in _points(costs):
        predicted = found.seconds(clean.tensors, clean.nbytes, clean.compute_s)
        assert predicted == pytest.approx(clean.seconds, rel=0.1)
    assert np.median(np.abs(left_out(points))) < 0.06


def test_a_point_that_fits_no_line_shows_in_its_own_error() -> None:
    points = _points(Costs(1e-3, 1e-5, 1e-10))
    points[4] = replace(points[4], seconds=3 * points[4].seconds)
    errors = np.abs(left_out(points))
    assert errors.argmax() == 4
    assert errors[4] > 0.5


def test_left_out_leaves_the_whole_group_out() -> None:
    points = _points(Costs(1e-3, 1e-5, 1e-10))
    odd = [replace(p, seconds=2 * p.seconds) if p.model == "GRU" else p for p in points]
    by_model = left_out(odd, lambda point: point.model)
    assert np.mean([e for e, p in zip(by_model, odd, strict=True) if p.model == "GRU"]) < -0.4


def test_few_points_are_refused() -> None:
    with pytest.raises(ValueError, match="3 points; 4 are needed"):
        fit(_points(Costs(1e-3, 1e-5, 1e-10))[:3])


def test_the_largest_variable_makes_a_hot_spot() -> None:
    vgg = MODELS["VGG-16"]
    largest = 4 * 7 * 7 * 512 * 4096
    assert busiest_share(vgg, 1) == (32, vgg.nbytes)
    assert busiest_share(vgg, 8) == (1, largest)
    lstm = MODELS["LSTM"]
    assert busiest_share(lstm, 2)[1] < 0.6 * lstm.nbytes


def test_predictions_obey_the_link() -> None:
    free = Costs(0.0, 0.0, 0.0)
    vgg = MODELS["VGG-16"]
    largest = 4 * 7 * 7 * 512 * 4096
    network = Network(100, latency_s=0.0)
    assert predict(free, network, vgg, 8, 8, 0.0) == pytest.approx(2 * 8 * largest * 8 / 100e9)
    # The more workers, the longer the fullest server takes.
    assert predict(free, network, vgg, 16, 16, 0.0) > predict(free, network, vgg, 8, 8, 0.0)
    # One server and one worker: variables there, gradients back.
    assert predict(free, network, vgg, 1, 1, 0.5) == pytest.approx(0.5 + 2 * vgg.nbytes * 8 / 100e9)
    assert predict(free, network, vgg, 1, 1, 0.5, overlap=1.0) == pytest.approx(0.5)
