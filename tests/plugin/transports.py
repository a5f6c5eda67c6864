# SPDX-License-Identifier: Apache-2.0
"""What tests share in which tasks change from one transport to another."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import tensorflow as tf

from support.clusters import STEP_S, Cluster

# What tensors take between two processes of a host. tests/tcp runs these tests over tcp too.
TRANSPORT = os.environ.get("RDMATENSOR_TRANSPORTS", "shm")
needs_shm = pytest.mark.skipif(TRANSPORT != "shm", reason="it is about shared memory, which is off")
# How steps may end whose channel was lost.
LOST = (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.CancelledError)


def sources(cluster: Cluster) -> list[Any]:
    """What tasks tell of how they receive from each other."""
    return [
        peer
        for index in range(len(cluster.tasks))
        for peer in cluster.stats(index)["peers"]
        if peer["direction"] == "receive" and "/job:worker/" in peer["task"]
    ]


def received_over(cluster: Cluster) -> list[str]:
    """The transports by which tasks receive from each other."""
    return [source["transport"] for source in sources(cluster)]


def go_over(cluster: Cluster, step: Callable[[], Any], transport: str) -> None:
    """Makes steps until both tasks receive over that, and one went well. Some may be lost with a channel."""
    end = time.monotonic() + STEP_S
    while True:
        assert time.monotonic() < end, sources(cluster)
        with suppress(*LOST):
            step()
            if received_over(cluster) == [transport] * 2:
                return
