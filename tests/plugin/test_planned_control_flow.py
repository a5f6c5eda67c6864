# SPDX-License-Identifier: Apache-2.0
"""Planned tensors of branches, loops, and steps that end before their tensors arrived."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from plugin.planned import (
    PLANNED,
    UNPLANNED,
    elsewhere,
    events,
    place_bytes,
    sent,
    some_number,
    warm_up,
)
from support.clusters import STEP_S, Cluster, within
from support.graphs import TASK0, TASK1, Session, cross, session, v1
from support.waits import until

# Elements: in a group, in a slot of its own, lent where it lies.
SIZES = [50] * 5 + [3_000, 100_000]


@pytest.fixture(params=["v1", "v2"])
def control_flow(request: pytest.FixtureRequest) -> Iterator[None]:
    """As TensorFlow 1 and 2 build branches and loops."""
    enabled = v1.control_flow_v2_enabled()
    (v1.enable_control_flow_v2 if request.param == "v2" else v1.disable_control_flow_v2)()
    yield
    (v1.enable_control_flow_v2 if enabled else v1.disable_control_flow_v2)()


@pytest.mark.usefixtures("control_flow")
def test_tensors_of_branches(cluster: Cluster) -> None:
    """What a branch sends is dead in the other one, and that goes by the plan as well."""

    def build() -> Any:
        with tf.device(TASK1):
            taken = v1.placeholder(tf.bool, [])
            number = some_number()
            xs = [tf.fill([size], number + i) for i, size in enumerate(SIZES)]

        def branch(first: float, second: float) -> Any:
            with tf.device(TASK0):
                ys = [x + first for x in xs]
            with tf.device(TASK1):
                return [y * second for y in ys]

        with tf.device(TASK1):
            chosen = tf.cond(taken, lambda: branch(1, 2), lambda: branch(3, 4))
        return taken, number, [cross(each) for each in chosen]

    with session(cluster, build) as opened:
        taken, number, results = opened.built

        def step(flag: bool) -> None:
            x, received = opened.run([number, results], {taken: flag})
            for i, each in enumerate(received):
                expected = (x + i + 1) * 2 if flag else (x + i + 3) * 4
                np.testing.assert_array_equal(each, np.full(SIZES[i], expected, "f"))

        for flag in (True, False):
            warm_up(cluster, lambda f=flag: step(f), branches=True)

        for _ in range(2):
            cluster.reset_stats()
            for number_of_step in range(20):
                step(number_of_step % 3 == 0)
            # What a branch does not use may be dropped after the next step began; its place comes back then.
            if not events(cluster, "busy"):
                break
        assert elsewhere(cluster) == 0 == events(cluster, "busy")
        assert sent(cluster, "static") > 20 * len(SIZES)


def test_group_with_dead_members(cluster: Cluster) -> None:
    """Both sides of switches are sent: in each step one of two is dead."""
    count = 6

    def build() -> Any:
        with tf.device(TASK1):
            number = some_number()
            alive = tf.random.uniform([count]) < 0.5
            switched = [
                tf.raw_ops.Switch(data=tf.fill([10 + i], number + i), pred=alive[i])
                for i in range(count)
            ]
        with tf.device(TASK0):
            results = [
                tf.raw_ops.Merge(inputs=[s.output_false - 1, s.output_true * 2]).output
                for s in switched
            ]
        return number, alive, results

    with session(cluster, build) as opened:
        number, alive, results = opened.built

        def step() -> None:
            x, flags, received = opened.run([number, alive, results])
            for i, each in enumerate(received):
                expected = (x + i) * 2 if flags[i] else x + i - 1
                np.testing.assert_array_equal(each, np.full(10 + i, expected, "f"))

        warm_up(cluster, step)
        for _ in range(50):
            step()
        assert sent(cluster, *UNPLANNED) == 0
        assert events(cluster, "fused") >= 50 * 2 * count
        assert events(cluster, "busy") == 0


@pytest.mark.usefixtures("control_flow")
@pytest.mark.parametrize("elements", SIZES[-3:])
def test_loop_of_more_turns_than_slots(cluster: Cluster, elements: int) -> None:
    """Several turns at once: what finds its slots taken goes another way, and everything is right."""
    turns = 40

    def build() -> Any:
        count = v1.placeholder(tf.int32, [])
        with tf.device(TASK1):
            start = tf.zeros([elements])

        def body(i: Any, x: Any) -> Any:
            with tf.device(TASK1):
                plain = tf.fill([elements], tf.cast(i, tf.float32))
            with tf.device(TASK0):
                y = x + plain
            with tf.device(TASK1):
                return i + 1, y + 1

        with tf.device(TASK1):
            x = tf.while_loop(
                lambda i, _: i < count, body, [0, start], [tf.TensorShape([]), start.shape]
            )[1]
        return count, cross(x)

    with session(cluster, build) as opened:
        count, result = opened.built

        def step(number: int) -> None:
            expected = np.full(elements, number * (number - 1) / 2 + number, "f")
            np.testing.assert_array_equal(opened.run(result, {count: number}), expected)

        for number in (0, 1, turns, 3):
            step(number)
        warm_up(cluster, lambda: step(1), branches=True)
        for number in (turns, 0, turns):
            step(number)
        # What goes another way, goes so because its slots were taken.
        assert elsewhere(cluster) <= events(cluster, "busy") * 4 * elements
        assert sent(cluster, *PLANNED) > turns
        assert sent(cluster, "rpc") == 0


def _waiting_graph() -> Any:
    """Task 0 receives tensors of all sizes, and waits for a queue before it uses them."""
    with tf.device(TASK1):
        x = some_number()
        several = [tf.fill([size], x + i) for i, size in enumerate(SIZES)]
    with tf.device(TASK0):
        queue = v1.FIFOQueue(10, [tf.float32], shapes=[[]])
        item = queue.dequeue()
        used = [each + item for each in several]
    with tf.device(TASK1):
        back = tf.stack([tf.reduce_max(each) for each in used])
    with tf.device(TASK0):
        return queue.enqueue(0.0), queue.size(), item, [x, cross(back)]


def _expect_steps(opened: Session, count: int, at_once: int) -> None:
    """`count` times `at_once` steps; they hold what they received at the same time."""
    fill, size, take, fetches = opened.built
    for _ in range(count):
        for _ in range(opened.run(size)):  # what no cancelled step took
            opened.run(take)
        for x, received in opened.run_filling(fill, fetches, at_once=at_once):
            np.testing.assert_array_equal(received, x + np.arange(len(SIZES)))


def _expect_all_slots(cluster: Cluster, opened: Session) -> None:
    """As many steps at once as there are slots go by the plan alone: no credit is lost. And one at a
    time, which leaves a slot for what is on its way."""
    warm_up(cluster, lambda: _expect_steps(opened, 1, at_once=2))
    _expect_steps(opened, 30, at_once=1)
    assert sent(cluster, *UNPLANNED) == 0
    assert events(cluster, "busy") == 0


@pytest.mark.parametrize(
    "cluster", ["shared_cluster", "planned_reading_cluster"], ids=["lent", "read"], indirect=True
)
def test_credits_come_home_from_cancelled_steps(cluster: Cluster) -> None:
    """At any moment, also while tensors are on their way or held."""
    with session(cluster, _waiting_graph) as opened:
        _expect_all_slots(cluster, opened)
        for timeout_ms in [300, *range(1, 60, 2)]:
            options = v1.RunOptions(timeout_in_ms=timeout_ms)
            with pytest.raises(tf.errors.DeadlineExceededError):
                within(STEP_S, lambda o=options: opened.raw.run(opened.built[-1], options=o))
        _expect_all_slots(cluster, opened)


def test_session_is_closed_during_steps(cluster: Cluster) -> None:
    """Its places end, and another session's credits are its own."""
    before = place_bytes(cluster)
    with session(cluster, _waiting_graph) as other:
        _expect_all_slots(cluster, other)
        for delay_s in (0.3, 0.02, 0.0):
            with session(cluster, _waiting_graph) as opened:
                _expect_steps(opened, 1, at_once=1)

                def step(raw: Any = opened.raw, fetches: Any = opened.built[-1]) -> None:
                    with suppress(tf.errors.OpError, RuntimeError):
                        raw.run(fetches)

                threads = [threading.Thread(target=step, daemon=True) for _ in range(3)]
                for thread in threads:
                    thread.start()
                time.sleep(delay_s)  # when the session is closed is what the test varies
                within(STEP_S, opened.raw.close)
                for thread in threads:
                    thread.join(STEP_S)
                assert not any(thread.is_alive() for thread in threads)
            _expect_all_slots(cluster, other)
    until("places stay", lambda: place_bytes(cluster) == before)


def test_failing_sender(cluster: Cluster) -> None:
    """The receiver learns it at once, and groups that lack a member give their slot back."""
    count = 8

    def build() -> Any:
        with tf.device(TASK1):
            variable = v1.get_variable("x", initializer=1.0, use_resource=True)
            value = v1.placeholder(tf.float32, [])
            set_it = variable.assign(value, read_value=False)
            x = variable.read_value()
            several = [tf.fill([10], x + i) for i in range(count)]
            several[::2] = [tf.raw_ops.CheckNumerics(tensor=t, message="") for t in several[::2]]
        return value, set_it, variable.initializer, [cross(each) for each in several]

    with session(cluster, build) as opened:
        value, set_it, initialize, results = opened.built

        def step() -> list[float]:
            return [float(each[0]) for each in opened.run(results)]

        warm_up(cluster, step)
        for number in range(20):
            opened.run(set_it, {value: float("nan")})
            start = time.monotonic()
            with pytest.raises(tf.errors.InvalidArgumentError):
                step()
            assert time.monotonic() - start < 5
            opened.run(set_it, {value: number})
            assert step() == [number + i for i in range(count)]
        warm_up(cluster, step)
        for _ in range(20):
            step()
        assert sent(cluster, *UNPLANNED) == 0
        assert events(cluster, "fused") > 0 == events(cluster, "busy")
        # The variable took the last value where it lay, and variables outlive sessions.
        opened.run(initialize)
    until("the place of an old value stays", lambda: not any(place_bytes(cluster)))
