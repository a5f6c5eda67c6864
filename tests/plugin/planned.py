# SPDX-License-Identifier: Apache-2.0
"""What tests of planned tensors share."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import tensorflow as tf

from support.clusters import STEP_S, Cluster

PLANNED = ("static", "bounded")
UNPLANNED = ("inline", "dynamic", "bounce", "rpc")


def sent(cluster: Cluster, *paths: str) -> int:
    """Tensors that both tasks sent by these paths since the counters were reset."""
    counters = [cluster.stats(index)["paths"] for index in range(len(cluster.tasks))]
    return sum(each[path]["sent_tensors"] for each in counters for path in paths)


def elsewhere(cluster: Cluster) -> int:
    """Bytes that tensors of the graph took another way than the plan. What TensorFlow's partitioner adds
    for control flow is not planned: empty tensors for dependencies, and booleans."""
    sent_bytes = sum(
        cluster.stats(index)["paths"][path]["sent_bytes"]
        for index in range(len(cluster.tasks))
        for path in UNPLANNED
    )
    return max(0, sent_bytes - sent(cluster, *UNPLANNED))


def events(cluster: Cluster, name: str) -> int:
    """The same of what happened to planned tensors."""
    return sum(cluster.stats(index)["plan"][name] for index in range(len(cluster.tasks)))


def place_bytes(cluster: Cluster) -> list[int]:
    """Memory for planned tensors, by task."""
    return [cluster.stats(index)["plan"]["place_bytes"] for index in range(len(cluster.tasks))]


def some_number() -> Any:
    """Another float in every step. Not fed: of what depends on feeds the planner concludes less."""
    return tf.cast(tf.random.uniform([], 1, 1000, tf.int32), tf.float32)


def _step_until(
    cluster: Cluster, step: Callable[..., Any], is_as_wanted: Callable[[], bool]
) -> None:
    """Runs steps until counters of one of them are as wanted."""
    end = time.monotonic() + STEP_S
    while True:
        cluster.reset_stats()
        step()
        if is_as_wanted():
            return
        assert time.monotonic() < end, [cluster.stats(index) for index in (0, 1)]
        time.sleep(0.02)


def until_connected(cluster: Cluster, step: Callable[..., Any]) -> None:
    """Runs steps until one of them makes no call by gRPC: tasks connect meanwhile."""

    def by_channels() -> bool:
        stats = [cluster.stats(index)["control"] for index in range(len(cluster.tasks))]
        calls = [of for each in stats for of in each.values()]
        return bool(calls) and all(of["channel_calls"] and not of["grpc_calls"] for of in calls)

    _step_until(cluster, step, by_channels)


def warm_up(cluster: Cluster, step: Callable[..., Any], branches: bool = False) -> None:
    """Runs steps until one went by the plan alone: the first ones go otherwise while the tasks agree.
    Then the counters are at zero. With `branches` see `elsewhere`."""
    others = partial(elsewhere, cluster) if branches else partial(sent, cluster, *UNPLANNED)
    _step_until(cluster, step, lambda: sent(cluster, *PLANNED) > 0 == others())
    cluster.reset_stats()


def use_places(cluster: Cluster, step: Callable[..., Any]) -> None:
    """Runs steps until one's tensors went to their places, but for strings and TensorFlow's own.
    The counters are that step's."""
    _step_until(
        cluster, step, lambda: sent(cluster, *PLANNED) > 0 == sent(cluster, "dynamic", "bounce")
    )
