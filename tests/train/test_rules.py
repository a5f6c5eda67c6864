# SPDX-License-Identifier: Apache-2.0
"""The synchronizers' formulas against dense references."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from rdmatensor.train.sync import rules

pytestmark = pytest.mark.timeout(300)
quick = settings(max_examples=40)
SIZES = st.integers(2, 33)
SEEDS = st.integers(0, 2**32 - 1)


def _models(seed: int, size: int, width: int = 5) -> Any:
    return np.random.default_rng(seed).standard_normal((size, width))


@quick
@given(SEEDS, SIZES, st.floats(0.2, 1.0))
def test_elastic_averaging_conserves_and_converges(seed: int, size: int, beta: float) -> None:
    models, centre = _models(seed, size), np.zeros(5)
    alpha = rules.elastic_rate(beta, size)
    whole, mean = models.sum(0), models.mean(0)
    for exchange in range(math.ceil(20 * size / beta)):
        differences = rules.elastic_difference(models, centre, alpha)
        models, centre = models - differences, centre + differences.sum(0)
        np.testing.assert_allclose(models.sum(0) + centre, whole, atol=1e-8)
        if exchange == 0:  # the dense form: the centre moves by beta towards the mean
            np.testing.assert_allclose(centre, beta * mean, atol=1e-9)
    together = np.broadcast_to(whole / (size + 1), models.shape)
    np.testing.assert_allclose(models, together, atol=1e-4)
    np.testing.assert_allclose(centre, together[0], atol=1e-4)


@quick
@given(SEEDS, st.integers(1, 40))
def test_pull_along_the_exponential_graph_is_doubly_stochastic(seed: int, size: int) -> None:
    models = _models(seed, size)
    mean = models.mean(0)
    for step in range(3 * rules.hops(size)):
        others = [models[rules.exponential_peer(rank, step, size)] for rank in range(size)]
        models = np.array([rules.pull(x, y) for x, y in zip(models, others, strict=True)])
        np.testing.assert_allclose(models.mean(0), mean, atol=1e-9)
    if size & (size - 1) == 0:  # powers of two reach the mean exactly
        np.testing.assert_allclose(models, np.broadcast_to(mean, models.shape), atol=1e-9)


@quick
@given(SEEDS, st.integers(0, 8))
def test_push_is_the_mean_of_what_is_there(seed: int, arrived: int) -> None:
    models = _models(seed, arrived + 1)
    np.testing.assert_allclose(rules.push(models[0], list(models[1:])), models.mean(0), atol=1e-9)


@quick
@given(SEEDS, st.integers(2, 9))
def test_random_peers_are_others_and_all_of_them(seed: int, size: int) -> None:
    generator = np.random.default_rng(seed)
    for rank in (0, size - 1):
        peers = {rules.random_peer(generator, rank, size) for _ in range(60 * size)}
        assert peers == set(range(size)) - {rank}


@quick
@given(SEEDS, SIZES)
def test_push_sum_conserves_values_and_weights(seed: int, size: int) -> None:
    values, weights = _models(seed, size), np.ones(size)
    total = values.sum(0)
    for step in range(6 * rules.hops(size)):
        inbox: list[list[Any]] = [[] for _ in range(size)]
        for rank in range(size):
            share = (values[rank] / 2, weights[rank] / 2)
            inbox[rules.exponential_peer(rank, step, size)].append(share)
        kept = [rules.push_sum(values[i] / 2, weights[i] / 2, inbox[i]) for i in range(size)]
        values, weights = np.array([x for x, _ in kept]), np.array([w for _, w in kept])
        assert math.isclose(weights.sum(), size)
        np.testing.assert_allclose(values.sum(0), total, atol=1e-9)
    reached = np.array([rules.unbiased(x, w) for x, w in zip(values, weights, strict=True)])
    distance = np.abs(reached - total / size).max()
    assert distance <= 0.1 * np.abs(_models(seed, size)).max()


@quick
@given(SEEDS, st.integers(2, 8), st.integers(0, 5))
def test_no_worker_runs_ahead_of_the_slack(seed: int, size: int, slack: int) -> None:
    generator = np.random.default_rng(seed)
    clocks = [0] * size
    for _ in range(200):
        able = [i for i, c in enumerate(clocks) if rules.may_begin(c, clocks, slack)]
        assert able  # the slowest always may
        clocks[int(generator.choice(able))] += 1
        assert max(clocks) - min(clocks) <= slack + 1


@quick
@given(SEEDS, SIZES)
def test_zero_slack_and_plain_means_are_synchronous_sgd(seed: int, size: int) -> None:
    """With one local step, DiLoCo at rate 1 without momentum applies the mean gradient, as AllReduce does."""
    gradients, model = _models(seed, size), np.ones(5)
    local = [model - 0.1 * each for each in gradients]
    mean = np.mean([rules.outer_gradient(model, each) for each in local], axis=0)
    after, _ = rules.nesterov(model, np.zeros(5), mean, learning_rate=1.0, momentum=0.0)
    np.testing.assert_allclose(after, model - 0.1 * gradients.mean(0), atol=1e-9)
    assert not rules.may_begin(1, [1, 0], 0)


@quick
@given(SEEDS, SIZES, st.floats(0.1, 1.0), st.floats(0.0, 0.95), st.integers(1, 12))
def test_the_outer_step_is_nesterovs(
    seed: int, size: int, rate: float, momentum: float, steps: int
) -> None:
    """The reference is Nesterov's method as it is taught: a gradient at the point to which momentum alone
    would lead, which is the model that workers get."""
    targets, model = _models(seed, size), np.ones(5)
    velocity, point, speed = np.zeros(5), model.copy(), np.zeros(5)
    for _ in range(steps):
        local = [model - 0.3 * (model - each) for each in targets]
        mean = np.mean([rules.outer_gradient(model, each) for each in local], axis=0)
        model, velocity = rules.nesterov(model, velocity, mean, rate, momentum)
        ahead = point + momentum * speed
        speed = momentum * speed - rate * 0.3 * (ahead - targets.mean(0))
        point = point + speed
        np.testing.assert_allclose(model, point + momentum * speed, atol=1e-9)


@quick
@given(st.integers(1, 60), st.integers(1, 8))
def test_each_fragment_is_due_once_a_period(period: int, fragments: int) -> None:
    fragments = min(fragments, period)
    due = [rules.fragment_due(step, period, fragments) for step in range(period, 2 * period)]
    assert sorted(each for each in due if each is not None) == list(range(fragments))
    assert all(rules.fragment_due(step, period, fragments) is None for step in range(1, period))


@quick
@given(SEEDS, st.integers(1, 6))
def test_weighted_mean(seed: int, count: int) -> None:
    values = list(_models(seed, count))
    weights = [float(i + 1) for i in range(count)]
    expected = np.average(values, axis=0, weights=weights)
    np.testing.assert_allclose(rules.weighted_mean(values, weights), expected, atol=1e-9)


VECTORS = arrays(
    np.float32, st.integers(1, 70), elements=st.floats(-1e6, 1e6, width=32, allow_subnormal=False)
)


@quick
@given(VECTORS, st.floats(0.001, 1.0), st.data())
def test_top_k_keeps_the_largest_and_the_error_the_rest(
    vector: Any, share: float, data: Any
) -> None:
    error = data.draw(arrays(np.float32, vector.size, elements=st.floats(-10, 10, width=32)))
    whole = rules.with_error(vector, error)
    count = rules.kept(share, vector.size)
    places = rules.top_k(whole, count)
    sent = rules.scattered(places, whole[places], vector.size)
    left = whole - sent
    np.testing.assert_array_equal(sent + left, whole)  # to the bit: a part is sent or kept
    assert len(set(places.tolist())) == count
    assert np.abs(left).max() <= np.abs(whole[places]).min()


@quick
@given(VECTORS)
def test_quantised_values_are_near(vector: Any) -> None:
    largest = np.abs(vector).max()
    codes, scale = rules.to_int8(vector)
    assert codes.dtype == np.int8
    assert np.abs(rules.from_int8(codes, scale) - vector).max() <= largest / 254 * 1.001
    codes, scale = rules.to_fp8(vector)
    assert codes.dtype == np.uint8
    near = rules.from_fp8(codes, scale)
    # Three bits of fraction, and the smallest step near zero.
    assert (
        np.abs(near - vector) <= np.maximum(np.abs(vector) / 16, largest / 448 * 2**-10) * 1.001
    ).all()
    assert (np.sign(near) * np.sign(vector) >= 0).all()


def test_fp8_is_the_type_that_others_mean() -> None:
    types = pytest.importorskip("ml_dtypes")
    codes = np.array([c for c in range(256) if c & 127 != 127], np.uint8)
    theirs = codes.view(types.float8_e4m3fn).astype(np.float32)
    np.testing.assert_array_equal(rules.from_fp8(codes, 1.0), theirs)
    generator = np.random.default_rng(1)
    values = np.append(generator.uniform(-448, 448, 2000), 448).astype(np.float32)
    mine, scale = rules.to_fp8(values)
    assert scale == 1.0
    different = mine != values.astype(types.float8_e4m3fn).view(np.uint8)
    assert different.mean() < 0.01  # only ties may be rounded otherwise


def test_what_is_not_finite_is_not_sent() -> None:
    vector = np.array([1.0, np.inf, -np.inf, np.nan, -2.0], np.float32)
    for encode, decode in ((rules.to_int8, rules.from_int8), (rules.to_fp8, rules.from_fp8)):
        np.testing.assert_allclose(decode(*encode(vector)), [1, 0, 0, 0, -2], atol=0.02)
        np.testing.assert_array_equal(decode(*encode(np.zeros(3, np.float32))), np.zeros(3))
        assert decode(*encode(np.zeros(0, np.float32))).size == 0


@quick
@given(SEEDS, st.integers(1, 4), st.integers(2, 12), st.integers(2, 12), st.integers(1, 5))
def test_power_sgd_equals_the_dense_power_iteration(
    seed: int, rank: int, rows: int, columns: int, size: int
) -> None:
    rank = min(rank, rows, columns)
    generator = np.random.default_rng(seed)
    matrices = generator.standard_normal((size, rows, columns))
    right = generator.standard_normal((columns, rank))
    left = rules.orthonormal(np.mean([rules.power_left(m, right) for m in matrices], axis=0))
    np.testing.assert_allclose(left.T @ left, np.eye(rank), atol=1e-9)
    right = np.mean([rules.power_right(m, left) for m in matrices], axis=0)
    # The projection of the mean matrix onto the columns of `left`.
    mean = matrices.mean(0)
    np.testing.assert_allclose(rules.power_result(left, right), left @ (left.T @ mean), atol=1e-9)
    # Errors are what was not sent, so their mean is what is missing.
    errors = [m - rules.power_result(left, right) for m in matrices]
    np.testing.assert_allclose(
        np.mean(errors, axis=0) + rules.power_result(left, right), mean, atol=1e-9
    )


def test_periods() -> None:
    assert [rules.qsr_period(0.02, rate, 4) for rate in (0.1, 0.01, 0.002, 0.0)] == [4, 4, 100, 4]
    assert rules.quality_period(4, 0.0, 0.02, 64) == 8
    assert rules.quality_period(4, 0.015, 0.02, 64) == 4
    assert rules.quality_period(4, 0.03, 0.02, 64) == 2
    assert rules.quality_period(64, 0.0, 0.02, 64) == 64
    assert rules.quality_period(1, math.nan, 0.02, 64) == 1
    assert rules.quality_cost(1.0, 1.5, 2.0) == 0.25


def _descend(mix: Any, size: int = 8, steps: int = 60) -> float:
    """How far workers end from the optimum of their common loss, the mean of (x - t_i)^2."""
    targets = _models(7, size)
    models = np.zeros_like(targets)
    for step in range(steps):
        models = mix(models - 0.2 * (models - targets), step)
    return float(np.abs(models - targets.mean(0)).max())


def test_convergence_needs_the_rule() -> None:
    """Gossip comes near the optimum that workers have in common; without averaging they do not."""

    def gossip(models: Any, step: int) -> Any:
        size = len(models)
        others = models[[rules.exponential_peer(rank, step, size) for rank in range(size)]]
        return rules.pull(models, others)

    def averaged(models: Any, step: int) -> Any:
        models = gossip(models, step)
        if rules.averages_globally(step + 1, 4):
            models = np.broadcast_to(models.mean(0), models.shape)
        return models

    assert _descend(gossip) < 0.5
    assert _descend(averaged) < 0.05
    assert _descend(lambda models, _: models) > 1.0
