# SPDX-License-Identifier: Apache-2.0
"""The kernels that route, read, add up and update rows, against numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from rdmatensor.train.backend.tensorflow import operations

pytestmark = pytest.mark.timeout(300)
RULES = {"sgd": 0, "momentum": 1, "nesterov": 1, "adagrad": 1, "adam": 2, "amsgrad": 3}


@pytest.fixture(scope="module")
def ops() -> Any:
    return operations.library()


@st.composite
def lookups(draw: Any) -> Any:
    """A number of rows, of owners, and the ids of each member."""
    size = draw(st.integers(1, 8))
    rows = draw(st.integers(1, 60))
    ids = st.lists(st.integers(0, rows - 1), max_size=40)
    return rows, draw(st.integers(1, size)), [draw(ids) for _ in range(size)]


@settings(max_examples=150)
@given(lookups(), st.sampled_from([tf.int32, tf.int64]))
def test_every_id_gets_its_row(ops: Any, case: Any, dtype: Any) -> None:
    rows, owners, ids = case
    size = len(ids)
    table = np.arange(rows)
    routes = [
        ops.rdmatensor_route(
            tf.constant(each, dtype), rows=rows, owners=owners, size=size, detail="t"
        )
        for each in ids
    ]
    for each, (asked, counts, _) in zip(ids, routes, strict=True):
        assert len(asked) == counts.numpy().sum() == len(set(each))
        assert not counts.numpy()[owners:].any()
    counts = tf.concat([counts for _, counts, _ in routes], 0)
    spread = [
        ops.rdmatensor_spread(asked, places, counts, size=size, rank=rank)
        for rank, (asked, _, places) in enumerate(routes)
    ]
    asked = np.stack([padded.numpy().reshape(size, -1) for padded, _ in spread])
    for rank, (_, positions) in enumerate(spread):
        answers = [
            [table[owner::owners][row] if row >= 0 else -1 for row in asked[rank, owner]]
            for owner in range(size)
        ]
        found = np.ravel(answers)[positions.numpy()] if ids[rank] else np.zeros(0)
        np.testing.assert_array_equal(found, ids[rank])


def test_routes_refuse_what_is_not_there(ops: Any) -> None:
    for bad in (7, -1, 1 << 32):
        with pytest.raises(tf.errors.InvalidArgumentError, match=rf"words: id {bad} is not in"):
            ops.rdmatensor_route(
                tf.constant([1, bad], tf.int64), rows=7, owners=2, size=2, detail="words"
            )
    with pytest.raises(tf.errors.InvalidArgumentError, match="contradict"):
        ops.rdmatensor_spread([1, 2], [0, 1], [1, 0, 1, 0], size=2, rank=0)
    with pytest.raises(tf.errors.InvalidArgumentError, match="member 1 asks for -4"):
        ops.rdmatensor_spread([1], [0], [1, 0, -4, 0], size=2, rank=0)
    with pytest.raises(tf.errors.InvalidArgumentError, match="place"):
        ops.rdmatensor_spread([1], [9], [1, 0, 1, 0], size=2, rank=0)


@st.composite
def gradients(draw: Any) -> Any:
    rows, width = draw(st.integers(1, 40)), draw(st.integers(1, 9))
    indices = draw(st.lists(st.integers(-1, rows - 1), max_size=60))
    numbers = np.random.default_rng(draw(st.integers(0, 99)))
    values = numbers.standard_normal((len(indices), width)).astype("f")
    return rows, width, np.array(indices, np.int32), values


def _sums(rows: int, width: int, indices: Any, values: Any) -> Any:
    dense = np.zeros((rows, width), "d")
    np.add.at(dense, indices[indices >= 0], values[indices >= 0])
    return dense


@settings(max_examples=100)
@given(gradients())
def test_sums(ops: Any, case: Any) -> None:
    rows, _, indices, values = case
    found, sums = ops.rdmatensor_sum_rows(indices, values, rows=rows, scale=0.5)
    assert sorted(found.numpy()) == sorted(set(indices[indices >= 0]))
    dense = _sums(*case)
    np.testing.assert_allclose(sums, dense[found.numpy()] / 2, atol=1e-5)


@settings(max_examples=100)
@given(gradients())
def test_sums_at_positions(ops: Any, case: Any) -> None:
    rows, width, indices, values = case
    indices, values = indices[indices >= 0], values[indices >= 0]
    sums = ops.rdmatensor_sum_at(values, indices, rows)
    np.testing.assert_allclose(sums, _sums(rows, width, indices, values), atol=1e-5)


@pytest.mark.parametrize("rule", RULES)
@settings(max_examples=40)
@given(case=gradients(), threads=st.integers(0, 3))
def test_updates_touch_only_named_rows(ops: Any, rule: str, case: Any, threads: int) -> None:
    rows, width, indices, values = case
    numbers = np.random.default_rng(1)
    before = [numbers.random((rows, width)).astype("f") + 0.1 for _ in range(1 + RULES[rule])]
    tables = [tf.Variable(each) for each in before]
    alias = tables[0].read_value()  # whose memory the kernel may not change
    rates = np.array([0.1, 0.9, 0.99, 1e-3], "f")
    ops.rdmatensor_update_rows(
        tables[0].handle, [each.handle for each in tables[1:]], indices, values, rates,
        rule=rule, threads=threads,
    )  # fmt: skip
    np.testing.assert_array_equal(alias, before[0])
    named = np.isin(np.arange(rows), indices)
    expected = _updated(rule, [each.astype("d") for each in before], _sums(*case), *rates)
    for found, old, new in zip(tables, before, expected, strict=True):
        np.testing.assert_array_equal(found.numpy()[~named], old[~named])
        np.testing.assert_allclose(found.numpy()[named], new[named], rtol=1e-4, atol=1e-5)


def _updated(
    rule: str, tables: Any, g: Any, rate: float, a: float, b: float, epsilon: float
) -> Any:
    x, *slots = tables
    if rule == "sgd":
        return [x - rate * g]
    if rule in ("momentum", "nesterov"):
        m = slots[0] * a - rate * g
        return [x + (m * a - rate * g if rule == "nesterov" else m), m]
    if rule == "adagrad":
        s = slots[0] + g * g
        return [x - rate * g / np.sqrt(s + epsilon), s]
    m, v = slots[0] * a + g * (1 - a), slots[1] * b + g * g * (1 - b)
    most = np.maximum(slots[2], v) if rule == "amsgrad" else v
    return [x - rate * m / (np.sqrt(most) + epsilon), m, v, most][: len(tables)]


def test_kernels_refuse_what_does_not_fit(ops: Any) -> None:
    table, other = tf.Variable(tf.zeros([3, 2])), tf.Variable(tf.zeros([4, 2]))
    rates = tf.zeros([4])

    def update(indices: Any, values: Any, *slots: Any, **more: Any) -> None:
        ops.rdmatensor_update_rows(
            table.handle, [each.handle for each in slots], indices, values,
            more.get("rates", rates), rule="momentum" if slots else "sgd",
        )  # fmt: skip

    for act, words in (
        (lambda: update([3], tf.zeros([1, 2])), "row 3 of a table with 3 rows"),
        (lambda: update([1], tf.zeros([1, 3])), "gradients of 3 numbers for rows of 2"),
        (lambda: update([1], tf.zeros([2, 2])), "rows for values"),
        (lambda: update([1], tf.zeros([1, 2]), other), "a slot has to be"),
        (lambda: update([1], tf.zeros([1, 2]), table), "a slot is named twice"),
        (lambda: update([1], tf.zeros([1, 2]), rates=tf.zeros([3])), "four rates"),
        (lambda: ops.rdmatensor_read_rows(table.handle, [3], T=tf.float32), "row 3 of a table"),
        (lambda: ops.rdmatensor_sum_at(tf.zeros([1, 2]), [3], 3), "position 3 of 3 sums"),
        (lambda: ops.rdmatensor_sum_at(tf.zeros([1, 2]), [-1], 3), "position -1"),
        (lambda: ops.rdmatensor_sum_at(tf.zeros([1, 2]), [0, 1], 3), "positions for values"),
        (lambda: ops.rdmatensor_sum_at(tf.zeros([1, 2]), [0], -3), "the number of sums"),
    ):
        with pytest.raises(tf.errors.InvalidArgumentError, match=words):
            act()
    read = ops.rdmatensor_read_rows(table.handle, [-1, 2], T=tf.float16)
    assert read.dtype == tf.float16 and not read.numpy().any()
