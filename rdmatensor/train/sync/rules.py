# SPDX-License-Identifier: Apache-2.0
"""Define the formulas of all synchronizers, in numpy. What trains, what simulates and what tests use these.

A model is an array of any shape: mostly, all parameters as one vector. Functions without `out` change no
argument. None communicates: a caller brings what other workers have sent.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]

# Elastic averaging: Zhang, Choromanska and LeCun 2015, arXiv 1412.6651.


def elastic_rate(beta: float, size: int) -> float:
    """Return the share of the distance to the centre that a worker moves: alpha = beta / N."""
    return beta / size


def elastic_difference(
    worker: Array, centre: Array, alpha: float, out: Array | None = None
) -> Array:
    """Return D = alpha (x - c). The worker subtracts it, and the centre adds it, which conserves their sum.

    `out` may be the centre as it was read.
    """
    difference: Array = np.subtract(worker, centre, out=out)
    difference *= alpha
    return difference


# Gossip: Jin, Yuan, Iandola and Keutzer 2016, arXiv 1611.04581.


def pull(own: Array, other: Array, out: Array | None = None) -> Array:
    """Return the mean of the own model and one that was read. `out` may be the own one."""
    total: Array = np.add(own, other, out=out)
    total *= 0.5
    return total


def push(own: Array, arrived: Sequence[Array], out: Array | None = None) -> Array:
    """Return the mean of the own model and all that have arrived. `out` may be the own one."""
    total: Array = np.array(own) if out is None else out
    if out is not None and out is not own:
        np.copyto(out, own)
    for each in arrived:
        total += each
    total /= 1 + len(arrived)
    return total


def random_peer(generator: np.random.Generator, rank: int, size: int) -> int:
    """Return another worker, each with the same probability."""
    other = int(generator.integers(size - 1))
    return other + (other >= rank)


# Push-sum: Assran, Loizou, Ballas and Rabbat 2019, arXiv 1811.10792.


def hops(size: int) -> int:
    """Return how many different peers the exponential graph gives each worker."""
    return max(1, math.ceil(math.log2(size)))


def exponential_peer(rank: int, step: int, size: int) -> int:
    """Return to whom a worker sends in a step: 2^(t mod log2 N) further. In a step, each receives once."""
    return (rank + (1 << step % hops(size))) % size


def exponential_source(rank: int, step: int, size: int) -> int:
    """Return from whom a worker receives in a step: who sends to it by `exponential_peer`."""
    return (rank - (1 << step % hops(size))) % size


def push_sum(
    value: Array, weight: float, arrived: Sequence[tuple[Array, float]], out: Array | None = None
) -> tuple[Array, float]:
    """Add what has arrived to sum and weight, and return both. `out` may be the value.

    Of a message (p x, p w), the sender keeps the rest, so all sums stay.
    """
    total = value if out is None or out is value else out
    if total is not value:
        np.copyto(total, value)
    for each, _ in arrived:
        total = np.add(total, each, out=out)
    return total, weight + sum(each for _, each in arrived)


def unbiased(value: Array, weight: float, out: Array | None = None) -> Array:
    """Return z = x / w, the model at which gradients are computed."""
    quotient: Array = np.divide(value, weight, out=out)
    return quotient


# Gossip-PGA: Chen, Yuan, Zhang, Pan, Xu and Yin 2021, arXiv 2105.09080.


def averages_globally(step: int, every: int) -> bool:
    """Return whether step 1, 2, ... ends with a mean of all models instead of gossip."""
    return step % every == 0


# Stale synchronous: Ho et al. 2013, NIPS.


def may_begin(clock: int, clocks: Sequence[int], slack: int) -> bool:
    """Return whether a worker that has finished `clock` steps may begin another one.

    It may if no worker is further back than `slack`. With 0, all move in step.
    """
    return clock - min(clocks) <= slack


# DiLoCo: Douillard et al. 2023, arXiv 2311.08105.


def outer_gradient(anchor: Array, model: Array) -> Array:
    """Return how far a worker has gone since the last exchange, as a gradient: theta - theta_i."""
    return anchor - model


def nesterov(
    anchor: Array,
    velocity: Array,
    gradient: Array,
    learning_rate: float = 0.7,
    momentum: float = 0.9,
) -> tuple[Array, Array]:
    """Make the outer step. Return the new common model and the new velocity.

    With a learning rate of 1 and momentum 0, the new model is the mean of the workers' models: local SGD.
    """
    velocity = momentum * velocity + gradient
    return anchor - learning_rate * (gradient + momentum * velocity), velocity


def fragment_due(step: int, period: int, fragments: int) -> int | None:
    """Return which fragment is exchanged after step 1, 2, ..., or None. Each is once a period, evenly spread.

    Streaming DiLoCo, Douillard et al. 2025, arXiv 2501.18512.
    """
    for fragment in range(fragments):
        if step >= period and step % period == (fragment * period) // fragments:
            return fragment
    return None


# Decoupled DiLoCo, arXiv 2604.21428.


def weighted_mean(values: Sequence[Array], weights: Sequence[float]) -> Array:
    """Return sum w D / sum w, over those that have arrived. Weights count steps, or examples."""
    total = math.fsum(weights)
    return sum(value * (weight / total) for value, weight in zip(values, weights, strict=True))  # type: ignore[return-value]


def quorum_reached(arrived: int, quorum: int, waited: float, grace: float) -> bool:
    """Return whether a fragment's exchange ends.

    It does when `quorum` workers have arrived, and `grace` seconds have passed since.
    """
    return arrived >= quorum and waited >= grace


# Compression with error feedback: Karimireddy et al. 2019, arXiv 1901.09847.


def with_error(value: Array, error: Array, decay: float = 1.0) -> Array:
    """Return what is compressed: the value and what was left out before.

    SparseLoCo (Sarfi et al. 2025, arXiv 2508.15706) lets the error decay.
    """
    return value + decay * error


def kept(share: float, count: int) -> int:
    """Return how many elements TopK sends of `count`: at least one."""
    return min(count, max(1, math.ceil(share * count)))


def top_k(vector: Array, count: int) -> Array:
    """Return the places of the `count` largest magnitudes, in ascending order."""
    return np.sort(np.argpartition(np.abs(vector), vector.size - count)[vector.size - count :])


def scattered(indices: Array, values: Array, size: int) -> Array:
    """Return the vector that has `values` at `indices`; values at equal places add up."""
    vector = np.zeros(size, values.dtype)
    np.add.at(vector, indices, values)
    return vector


# PowerSGD: Vogels, Karimireddy and Jaggi 2019, arXiv 1905.13727.


def power_left(matrix: Array, right: Array) -> Array:
    """Return P = M Q. Workers use the mean of theirs, made orthonormal."""
    product: Array = matrix @ right
    return product


def orthonormal(matrix: Array) -> Array:
    """Return columns of length 1 at right angles, which span what the columns of `matrix` do.

    The result depends on nothing but the argument, so all workers that have the same one agree.
    """
    columns, _ = np.linalg.qr(matrix)
    return columns.astype(matrix.dtype, copy=False)


def power_right(matrix: Array, left: Array) -> Array:
    """Return Q = M^T P. Workers use the mean of theirs, also as the Q of the next step."""
    product: Array = matrix.T @ left
    return product


def power_result(left: Array, right: Array) -> Array:
    """Return P Q^T, which stands for the mean of the matrices. A worker's error is its matrix without it."""
    product: Array = left @ right.T
    return product


# Quantisation.


def to_int8(vector: Array) -> tuple[Array, float]:
    """Return codes of 8 bits and what they are multiplied with. Values that are not finite count as 0."""
    largest = float(np.max(np.abs(vector), initial=0.0, where=np.isfinite(vector)))
    scale = largest / 127 or 1.0
    return np.rint(np.nan_to_num(vector, posinf=0.0, neginf=0.0) / scale).astype(np.int8), scale


def from_int8(codes: Array, scale: float) -> Array:
    """Return what the codes stand for, as float32."""
    return codes.astype(np.float32) * np.float32(scale)


@cache
def _fp8_values() -> Array:
    """Return the values of the codes 0 to 126 of E4M3, which rise.

    Micikevicius et al. 2022, arXiv 2209.05433.
    """
    codes = np.arange(127)
    exponent, fraction = codes >> 3, codes & 7
    return np.where(exponent == 0, fraction * 2.0**-9, (8 + fraction) * 2.0 ** (exponent - 10.0))


def to_fp8(vector: Array) -> tuple[Array, float]:
    """Return codes of E4M3 and what their values are multiplied with, so that the largest fits exactly.

    Values that are not finite count as 0.
    """
    values = _fp8_values()
    finite = np.nan_to_num(vector, posinf=0.0, neginf=0.0)
    scale = float(np.max(np.abs(finite), initial=0.0)) / float(values[-1]) or 1.0
    middles = (values[1:] + values[:-1]) / 2
    codes = np.searchsorted(middles, np.abs(finite) / scale).astype(np.uint8)
    return codes | np.where(np.signbit(finite), np.uint8(128), np.uint8(0)), scale


def from_fp8(codes: Array, scale: float) -> Array:
    """Return what the codes stand for, as float32."""
    signed = np.concatenate([_fp8_values(), [np.nan], -_fp8_values(), [np.nan]])
    return (signed[codes] * scale).astype(np.float32)


# Periods.


def qsr_period(alpha: float, learning_rate: float, base: int) -> int:
    """Return H = max(H0, floor((alpha / eta)^2)), the quadratic rule (Gu et al. 2024, arXiv 2310.14423)."""
    return max(base, math.floor((alpha / learning_rate) ** 2)) if learning_rate > 0 else base


def quality_period(period: int, cost: float, bound: float, longest: int) -> int:
    """Return the next period where quality guides it, after Nexus (Wang, Zhang, Ren and Zhang, MASCOTS 2017).

    `cost` is how much worse exchanging rarely makes the loss, in units of the first loss; see `quality_cost`.
    Within half the bound the period doubles; beyond the bound it halves.
    """
    if not math.isfinite(cost) or cost > bound:
        return max(1, period // 2)
    return min(2 * period, longest) if cost <= bound / 2 else period


def quality_cost(before: float, after: float, first: float) -> float:
    """Return what an exchange shows of the price of its period, in units of the first loss.

    It is the loss of the common model right after it, above the mean loss that the workers had right before.
    """
    return (after - before) / first if first > 0 else 0.0
