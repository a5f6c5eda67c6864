# SPDX-License-Identifier: Apache-2.0
"""Branches not taken, loops, and several steps at once, across two workers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from support.clusters import EVERY_WAY, STEP_S, Cluster
from support.graphs import TASK0, TASK1, cross, session, v1


@contextmanager
def _control_flow(version: str) -> Iterator[None]:
    enabled = v1.control_flow_v2_enabled()
    (v1.enable_control_flow_v2 if version == "v2" else v1.disable_control_flow_v2)()
    try:
        yield
    finally:
        (v1.enable_control_flow_v2 if enabled else v1.disable_control_flow_v2)()


@pytest.mark.parametrize("version", ["v1", "v2"])
@pytest.mark.parametrize("elements", [5, 50_000])
def test_cond(cluster: Cluster, version: str, elements: int) -> None:
    def build() -> Any:
        with tf.device(TASK1):
            taken = v1.placeholder(tf.bool, [])
            x = v1.placeholder(tf.float32, [None])

        def yes() -> Any:
            with tf.device(TASK0):
                y = x + 1
            with tf.device(TASK1):
                return y * 2

        def no() -> Any:
            with tf.device(TASK0):
                return x - 1

        with tf.device(TASK1):
            chosen = tf.cond(taken, yes, no)
        return taken, x, cross(chosen)

    with _control_flow(version), session(cluster, build) as opened:
        taken, x, result = opened.built
        content = np.arange(elements, dtype="f")
        for flag in (True, False, False, True):
            expected = (content + 1) * 2 if flag else content - 1
            np.testing.assert_array_equal(opened.run(result, {taken: flag, x: content}), expected)


@EVERY_WAY
@pytest.mark.parametrize("version", ["v1", "v2"])
@pytest.mark.parametrize("elements", [5, 50_000])
def test_while(cluster: Cluster, version: str, elements: int) -> None:
    def build() -> Any:
        count = v1.placeholder(tf.int32, [])
        with tf.device(TASK1):
            start = tf.ones([elements])

        def body(i: Any, x: Any) -> Any:
            with tf.device(TASK0):
                y = x * 2
            with tf.device(TASK1):
                return i + 1, y + 1

        with tf.device(TASK1):
            _, x = tf.while_loop(lambda i, _: i < count, body, [0, start])
        return count, cross(x)

    with _control_flow(version), session(cluster, build) as opened:
        count, result = opened.built
        for steps in (0, 1, 12):
            expected = np.full(elements, 2.0 ** (steps + 1) - 1, "f")
            np.testing.assert_array_equal(opened.run(result, {count: steps}), expected)


@EVERY_WAY
def test_variable_is_updated_while_it_is_read(cluster: Cluster) -> None:
    """A reader sees one version, never a mixture: all elements are equal."""
    elements = 1 << 20

    def build() -> Any:
        with tf.device(TASK1):
            variable = v1.get_variable(
                "v", [elements], initializer=v1.zeros_initializer(), use_resource=True
            )
            update = variable.assign_add(tf.ones([elements]), read_value=False)
        with tf.device(TASK0):
            read = tf.identity(variable.read_value())
            return update, tf.reduce_min(read), tf.reduce_max(read)

    with session(cluster, build) as opened:
        update, low, high = opened.built
        running = True

        def keep_updating() -> None:
            while running:
                opened.raw.run(update)

        updater = threading.Thread(target=keep_updating, daemon=True)
        updater.start()
        try:
            pairs = [opened.run([low, high]) for _ in range(60)]
        finally:
            running = False
            updater.join(STEP_S)
        assert not updater.is_alive()
    assert all(a == b for a, b in pairs)
    assert pairs[-1][0] > pairs[0][0]


@EVERY_WAY
def test_reference_variable_updated_after_it_was_sent(cluster: Cluster) -> None:
    """TensorFlow 1's variables change in place: what was received before must not."""

    def build() -> Any:
        with tf.device(TASK1):
            variable = v1.get_variable(
                "v", [100_000], initializer=v1.zeros_initializer(), use_resource=False
            )
        received = cross(variable)
        with tf.control_dependencies([received]), tf.device(TASK1):
            return received, v1.assign_add(variable, tf.ones([100_000])).op

    with session(cluster, build) as opened:
        for step in range(20):
            received, _ = opened.run(opened.built)
            np.testing.assert_array_equal(received, np.full(100_000, step, "f"))


@EVERY_WAY
def test_concurrent_steps_in_two_sessions(cluster: Cluster) -> None:
    def build() -> Any:
        with tf.device(TASK1):
            x = v1.placeholder(tf.float32, [])
            small, large = tf.fill([10], x), tf.fill([30_000], x)
        with tf.device(TASK0):
            back = tf.reduce_sum(large * 2)
        with tf.device(TASK1):
            again = tf.fill([20_000], back)
        return x, cross(small), cross(again)

    failures: list[str] = []

    def steps(opened: Any, first: int) -> None:
        x, small, again = opened.built
        for value in range(first, first + 40):
            a, b = opened.run([small, again], {x: value})
            if not (a == value).all() or not (b == 60_000.0 * value).all():
                failures.append(f"{value}: {a[0]} {b[0]}")

    with session(cluster, build) as one, session(cluster, build) as two:
        threads = [
            threading.Thread(target=steps, args=(opened, first), daemon=True)
            for first, opened in enumerate((one, two, one, two))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(2 * STEP_S)
        assert not any(thread.is_alive() for thread in threads)
    assert not failures
    assert cluster.stats(1)["paths"]["rpc"]["sent_tensors"] == 0
