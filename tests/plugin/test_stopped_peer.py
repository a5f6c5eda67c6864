# SPDX-License-Identifier: Apache-2.0
"""A peer that stops in mid-step without losing its connections: the step ends by its time-out, and
when the peer goes on so does everything else."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from support.clusters import STEP_S, Cluster, within
from support.graphs import TASK0, TASK1, Session, config, cross, session, v1
from support.waits import until

ELEMENTS = 100_000


def _build() -> Any:
    """Task 1 sends, waits for a queue of task 0 in mid-step, and sends again; both directions."""
    with tf.device(TASK0):
        value = v1.placeholder(tf.float32, [])
        queue = v1.FIFOQueue(10, [tf.float32], shapes=[[]])
        there = tf.fill([ELEMENTS], value)
        fill = queue.enqueue(1.0)
    with tf.device(TASK1):
        first = tf.reduce_max(there)
        large = tf.fill([ELEMENTS], first)
    with tf.device(TASK0):
        # The step is in its middle when this was done: task 1 has received and sent.
        with tf.control_dependencies([cross(large)]):
            reached = v1.FIFOQueue(10, [tf.float32], shapes=[[]])
            note = reached.enqueue(1.0)
        with tf.control_dependencies([note]):
            item = queue.dequeue()
    with tf.device(TASK1):
        second = there * item
    return value, fill, reached.size(), cross(second)


def _expect(opened: Session, expected: float) -> None:
    """A whole step."""
    value, fill, _, result = opened.built
    opened.run(fill)
    received = opened.run(result, {value: expected})
    np.testing.assert_array_equal(received, np.full(ELEMENTS, expected, "f"))


def _in_thread(step: Callable[[], Any]) -> tuple[threading.Thread, list[Exception]]:
    ended: list[Exception] = []

    def run() -> None:
        try:
            step()
        except Exception as error:
            ended.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, ended


@pytest.mark.parametrize("limit", ["step", "operation"])
def test_step_ends_by_its_time_out(cluster: Cluster, limit: str, note: Any) -> None:
    timeout_ms = 3000
    settings = config()
    options = v1.RunOptions()
    if limit == "step":
        options.timeout_in_ms = timeout_ms
    else:
        settings.operation_timeout_in_ms = timeout_ms
    with session(cluster, _build, settings) as opened:
        value, fill, reached, result = opened.built
        _expect(opened, 2.0)
        before = opened.run(reached)
        step, ended = _in_thread(lambda: opened.raw.run(result, {value: 3.0}, options=options))
        until("the step does not get to its middle", lambda: opened.run(reached) != before)
        with cluster.tasks[1].stopped():
            opened.run(fill)  # on task 0 only: now task 1 is waited for
            step.join(STEP_S)
            assert not step.is_alive(), "the step hangs while its peer is stopped"
            assert isinstance(ended[0], tf.errors.DeadlineExceededError), ended[0]
            # The other task is well: a step without the stopped one runs.
            within(5, lambda: opened.raw.run(reached))
            seen = f"{type(ended[0]).__name__} after the {limit}'s own time-out"
            note(
                "peer stopped, then resumed",
                seen,
                timeout_ms / 1000,
                "steps without that task; all steps after it resumes",
            )
        for expected in (4.0, 5.0):
            _expect(opened, expected)
    assert cluster.stats(1)["paths"]["rpc"]["sent_tensors"] == 0
