# SPDX-License-Identifier: Apache-2.0
"""Planned tensors in the steady state: all of them arrive by the plan, in steps that run alone or
together, and they are what was sent."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from plugin.planned import PLANNED, UNPLANNED, events, place_bytes, sent, some_number, warm_up
from plugin.transports import TRANSPORT
from support.clusters import STEP_S, Cluster
from support.graphs import TASK0, TASK1, Session, cross, session, v1
from support.waits import until

# Elements: in a group, in a slot of its own, lent where it lies.
GROUPED, COPIED, LENT = 100, 3_000, 1 << 18
SIZES = [GROUPED] * 12 + [COPIED] * 4 + [LENT] * 2
SETTINGS = {
    "lent": {"RDMATENSOR_TEST_PLAN_COPY_BYTES": "16K"},
    "copied": {"RDMATENSOR_TEST_PLAN_COPY_BYTES": "1T"},
    "not_fused": {"RDMATENSOR_TEST_PLAN_COPY_BYTES": "16K", "RDMATENSOR_TEST_FUSE_BYTES": "0"},
    "read": {"RDMATENSOR_TEST_PLAN_COPY_BYTES": "16K", "RDMATENSOR_TEST_ALIAS_BYTES": "1T"},
}


@pytest.fixture(scope="module", params=SETTINGS)
def configured(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    settings: dict[str, str] = SETTINGS[request.param]
    folder = tmp_path_factory.mktemp(request.param)
    cluster = Cluster.pair(folder, settings)
    yield cluster
    cluster.close()


def _changing_variables() -> Any:
    """Each is sent, and counted up in the same step, perhaps while it is on its way."""
    received, updates = [], []
    for i, size in enumerate(SIZES):
        with tf.device(TASK1):
            variable = v1.get_variable(
                f"v{i}", initializer=np.full(size, i, "f"), use_resource=True
            )
            read = variable.read_value()
            with tf.control_dependencies([read]):
                updates.append(variable.assign_add(tf.ones([size]), read_value=False))
        received.append(cross(read))
    return received, updates


def test_200_steps(configured: Cluster) -> None:
    steps = 200
    with session(configured, _changing_variables) as opened:
        received, updates = opened.built
        done = 0

        def step() -> None:
            nonlocal done
            values = opened.run([received, updates])[0]
            for i, value in enumerate(values):
                np.testing.assert_array_equal(value, np.full(SIZES[i], i + done, "f"))
            done += 1

        warm_up(configured, step)
        for _ in range(3):
            step()
        regions = [configured.stats(index)["arena"]["regions"] for index in (0, 1)]
        places = place_bytes(configured)
        configured.reset_stats()
        for _ in range(steps):
            step()
        assert sent(configured, *UNPLANNED) == 0
        assert sent(configured, "static") == steps * len(SIZES)
        assert events(configured, "busy") == 0
        fused = steps * SIZES.count(GROUPED)
        settings = configured.environment(0)
        assert events(configured, "fused") == (
            0 if "RDMATENSOR_TEST_FUSE_BYTES" in settings else fused
        )
        copies_all = settings["RDMATENSOR_TEST_PLAN_COPY_BYTES"] == "1T"
        # Over tcp, tensors are written into their places, however large they are.
        lent = 0 if copies_all or TRANSPORT != "shm" else steps * SIZES.count(LENT)
        fetched = configured.stats(0)["fetched"]
        assert fetched["read" if configured.reads else "in_place"]["tensors"] == lent
        # Whatever came lies in places that were there before.
        if not configured.reads:
            assert configured.stats(0)["arena"]["allocations"] == 0
        assert [configured.stats(index)["arena"]["regions"] for index in (0, 1)] == regions
        assert place_bytes(configured) == places


def _there_and_back() -> Any:
    """Tensors of all sizes go to task 0, and what is computed of them comes back."""
    with tf.device(TASK1):
        x = some_number()
        there = [tf.fill([size], x + i) for i, size in enumerate(SIZES)]
    with tf.device(TASK0):
        doubled = [each * 2 for each in there]
    with tf.device(TASK1):
        # Equal elements, or a slot was overwritten.
        lowest = tf.stack([tf.reduce_min(each) for each in doubled])
        highest = tf.stack([tf.reduce_max(each) for each in doubled])
    return x, [cross(lowest), cross(highest)]


def _run_together(runners: list[Callable[[], None]]) -> None:
    failures: list[BaseException] = []

    def run(runner: Callable[[], None]) -> None:
        try:
            runner()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(each,), daemon=True) for each in runners]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(3 * STEP_S)
    assert not any(thread.is_alive() for thread in threads), "steps hang"
    assert not failures, failures[0]


def _steps(opened: Session, count: int) -> None:
    for _ in range(count):
        x, results = opened.run(opened.built)
        for result in results:
            np.testing.assert_array_equal(result, 2 * (x + np.arange(len(SIZES))))


def test_two_sessions_and_concurrent_steps(cluster: Cluster) -> None:
    """More steps at once than there are slots: some tensors take another way, all are right."""
    with session(cluster, _there_and_back) as one, session(cluster, _there_and_back) as two:
        for opened in (one, two):
            warm_up(cluster, lambda o=opened: _steps(o, 1))
        _run_together([partial(_steps, opened, 30) for opened in (one, two) * 3])
        assert events(cluster, "busy") > 0
        assert sent(cluster, "static") > sent(cluster, *UNPLANNED)
        assert sent(cluster, "rpc") == 0
        # Every credit came home: nothing is busy for steps that run alone.
        for opened in (one, two):
            warm_up(cluster, lambda o=opened: _steps(o, 1))
            _steps(opened, 20)
            assert sent(cluster, *UNPLANNED) == 0


def test_places_end_with_the_session(cluster: Cluster) -> None:
    until("places of earlier sessions stay", lambda: not any(place_bytes(cluster)))
    for _ in range(3):
        with session(cluster, _there_and_back) as opened:
            warm_up(cluster, lambda o=opened: _steps(o, 1))
            assert all(place_bytes(cluster))
        until("places stay", lambda: not any(place_bytes(cluster)))


def test_new_signature_while_steps_run(cluster: Cluster) -> None:
    """A session that runs something new gets more places; what it ran before goes on as it was."""

    def build() -> Any:
        x, results = _there_and_back()
        with tf.device(TASK1):
            other = tf.fill([COPIED], x)
            more = [cross(tf.fill([COPIED], x * 3 + i)) for i in range(3)]
        with tf.device(TASK0):
            more.append(other - 1)
        return x, results, more

    with session(cluster, build) as opened:
        x, results, more = opened.built
        opened.built = x, results
        warm_up(cluster, lambda: _steps(opened, 1))
        planned = len(cluster.tasks[0].ask("plan")["edges"])
        places = place_bytes(cluster)[0]

        def extend() -> None:
            for _ in range(30):
                value, received = opened.run([x, more])
                for i, each in enumerate(received):
                    expected = value * 3 + i if i < 3 else value - 1
                    np.testing.assert_array_equal(each, np.full(COPIED, expected, "f"))

        _run_together([lambda: _steps(opened, 60), extend])
        assert len(cluster.tasks[0].ask("plan")["edges"]) > planned
        assert place_bytes(cluster)[0] > places
        cluster.reset_stats()
        extend()
        _steps(opened, 10)
        assert sent(cluster, *PLANNED) > 0 == sent(cluster, *UNPLANNED)


def test_memory_that_is_not_the_arenas(cluster: Cluster) -> None:
    """Constants lie where TensorFlow parsed them: they cannot be lent, and are copied into their place."""
    content = np.arange(LENT, dtype="f")

    def build() -> Any:
        with tf.device(TASK1):
            return cross(tf.constant(content))

    with session(cluster, build) as opened:
        warm_up(cluster, lambda: opened.run(opened.built))
        for _ in range(20):
            np.testing.assert_array_equal(opened.run(opened.built), content)
        assert sent(cluster, "static") == 20
        assert sent(cluster, *UNPLANNED) == 0
