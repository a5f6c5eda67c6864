# SPDX-License-Identifier: Apache-2.0
"""Tensors of which the graph does not tell the size, or tells a wrong one, and too little memory for
all that it tells."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from plugin.planned import PLANNED, UNPLANNED, events, place_bytes, sent, some_number, warm_up
from support.clusters import STEP_S, Cluster, within
from support.graphs import TASK0, TASK1, cross, session, v1
from support.waits import until

KIB = 1024


@contextmanager
def started(folder: Path, *settings: dict[str, str]) -> Iterator[Cluster]:
    """A cluster whose workers have these settings."""
    cluster = Cluster(["grpc+rdma"] * len(settings), folder, dict(enumerate(settings)))
    try:
        yield cluster
    finally:
        cluster.close()


def _fed() -> Any:
    """What is fed with any batch size is sent to task 1, and the double of it back."""
    fed = v1.placeholder(tf.float32, [None, 16])
    with tf.device(TASK1):
        doubled = fed * 2
    return fed, cross(doubled)


def _expect_doubled(run: Callable[..., Any], built: Any, batch: int) -> None:
    fed, doubled = built
    content = np.random.default_rng(batch).normal(size=(batch, 16)).astype("f")
    np.testing.assert_array_equal(run(doubled, {fed: content}), content * 2)


def test_batch_size_bounds_what_is_fed(tmp_path: Path) -> None:
    settings = {"RDMATENSOR_BATCH_SIZE": "64"}
    with started(tmp_path, settings, settings) as cluster, session(cluster, _fed) as opened:
        warm_up(cluster, lambda: _expect_doubled(opened.run, opened.built, 64))
        batches = [1, 64, 0, 17, 64, 3]
        for batch in batches:
            _expect_doubled(opened.run, opened.built, batch)
        assert sent(cluster, "bounded") == 2 * len(batches)
        assert sent(cluster, *UNPLANNED) == 0
        edges = cluster.tasks[0].ask("plan")["edges"]
        assert [(e["class"], e["shape"], e["bytes"]) for e in edges] == [
            ("bounded", [None, 16], 64 * 16 * 4)
        ]
        # More than was promised takes the dynamic path.
        for batch in (65, 100, 64):
            _expect_doubled(opened.run, opened.built, batch)
        assert events(cluster, "unfit") == 4
        assert sent(cluster, "bounded") == 2 * len(batches) + 2


def test_promotion_and_demotion(cluster: Cluster) -> None:
    """A tensor that keeps its size gets a place of that size, and loses it when it outgrows it."""
    with session(cluster, _fed) as opened:

        def run(batch: int, times: int = 1) -> None:
            for _ in range(times):
                _expect_doubled(opened.run, opened.built, batch)

        def until_planned(batch: int) -> None:
            warm_up(cluster, lambda: run(batch))

        run(30, 2)
        assert (sent(cluster, *PLANNED), events(cluster, "promoted")) == (0, 0)
        run(31, 2)  # another one: counted from the beginning
        assert (sent(cluster, *PLANNED), events(cluster, "promoted")) == (0, 0)
        run(31)
        until("nothing is promoted", lambda: events(cluster, "promoted") == 2)
        until_planned(31)
        for batch in (31, 7, 0, 31):  # all of them fit
            run(batch)
        assert sent(cluster, "bounded") == 8
        assert sent(cluster, *UNPLANNED) == 0

        small = place_bytes(cluster)
        cluster.reset_stats()
        run(200)
        assert events(cluster, "unfit") == 2
        until("nothing is demoted", lambda: events(cluster, "demoted") == 2)
        until("places stay", lambda: max(place_bytes(cluster)) < max(small))
        run(200, 3)
        until("nothing is promoted", lambda: events(cluster, "promoted") == 2)
        until_planned(200)
        run(200, 5)
        assert sent(cluster, "bounded") == 10
        assert sent(cluster, *UNPLANNED) == 0


def test_never_promoted(tmp_path: Path) -> None:
    settings = {"RDMATENSOR_TEST_PROMOTE_AFTER": "0"}
    with started(tmp_path, settings, settings) as cluster, session(cluster, _fed) as opened:
        for _ in range(10):
            _expect_doubled(opened.run, opened.built, 30)
        assert sent(cluster, *PLANNED) == 0
        assert events(cluster, "promoted") == 0


def _many_sizes() -> Any:
    with tf.device(TASK1):
        x = some_number()
        sizes = [16 * KIB] * 4 + [2 * KIB] * 8
        several = [tf.fill([size], x + i) for i, size in enumerate(sizes)]
    return x, [cross(each) for each in several]


def test_limit_that_is_too_small(tmp_path: Path) -> None:
    """Room for some tensors only: they stay in the plan, the others take the dynamic path, and both
    arrive."""
    limit = 300 * KIB
    settings = {"RDMATENSOR_PLAN_LIMIT": str(limit), "RDMATENSOR_TEST_FUSE_BYTES": "0"}
    with started(tmp_path, settings, {}) as cluster, session(cluster, _many_sizes) as opened:

        def step() -> None:
            value, received = opened.run(opened.built)
            for i, each in enumerate(received):
                assert (each == value + i).all()

        for _ in range(5):
            step()
        assert 0 < place_bytes(cluster)[0] <= limit
        plan = cluster.tasks[0].ask("plan")["edges"]
        left_out = [each for each in plan if each["class"] != "static"]
        assert 0 < len(left_out) < len(plan)
        assert all("budget" in each["reason"] for each in left_out)
        assert events(cluster, "over_budget") == len(left_out)
        (warning,) = cluster.warnings(0)
        assert "RDMATENSOR_PLAN_LIMIT" in warning
        cluster.reset_stats()
        for _ in range(10):
            step()
        assert sent(cluster, "static") == 10 * (len(plan) - len(left_out))
        assert sent(cluster, "inline", "dynamic") == 10 * len(left_out)


@pytest.mark.parametrize("off", [0, 1])
def test_plan_is_off_at_one_task(tmp_path: Path, off: int) -> None:
    """Task 0 makes the graphs: without its plan there is none. Without task 1's, only task 0 offers
    places, and they stay empty."""
    settings: list[dict[str, str]] = [{}, {}]
    settings[off] = {"RDMATENSOR_PLAN": "off"}

    def build() -> Any:
        with tf.device(TASK0):
            x = v1.placeholder(tf.float32, [])
            there = tf.fill([1000], x)
        with tf.device(TASK1):
            back = there * 2
        return x, cross(back)

    with started(tmp_path, *settings) as cluster, session(cluster, build) as opened:
        x, back = opened.built
        cluster.reset_stats()
        for value in range(20):
            np.testing.assert_array_equal(
                opened.run(back, {x: value}), np.full(1000, 2 * value, "f")
            )
        assert sent(cluster, *PLANNED) == 0
        # The placeholder's value stays on task 0.
        assert sent(cluster, "inline", "dynamic") == 40
        assert events(cluster, "mismatched") == 0
        assert cluster.warnings(0) == cluster.warnings(1) == []


def test_fed_with_another_shape_than_promised(cluster: Cluster) -> None:
    """The client checks feeds, but need not: what does not fit takes the dynamic path."""

    def build() -> Any:
        fed = v1.placeholder(tf.float32, [500])
        with tf.device(TASK1):
            total = tf.reduce_sum(tf.reshape(fed, [-1]))
        return fed, cross(total)

    with session(cluster, build) as opened:
        fed, total = opened.built

        def unchecked(content: Any) -> Any:
            run = opened.raw._do_run
            return within(STEP_S, lambda: run(None, [], [total], {fed.ref(): content}, None, None))[
                0
            ]

        warm_up(cluster, lambda: unchecked(np.ones(500, "f")))
        for shape in ((500,), (20, 30), (100_000,), (500,), (), (1, 500), (500,)):
            assert unchecked(np.ones(shape, "f")) == np.prod(shape)
        assert sent(cluster, "static") == 3 + 7
        assert sent(cluster, "inline", "dynamic", "bounce") == 4
        assert events(cluster, "unfit") == 4
