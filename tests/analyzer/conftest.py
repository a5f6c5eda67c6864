# SPDX-License-Identifier: Apache-2.0
"""Plans that several tests look at; building Keras models takes seconds."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

pytest.importorskip("tensorflow", reason="TensorFlow is not installed")

from graph_analyzer import TransferPlan, analyze
from support import stock_servers
from support.placed_graphs import loop, training


@pytest.fixture(scope="session")
def cluster() -> Iterator[stock_servers.Cluster]:
    """Real TensorFlow servers over gRPC: a parameter server and two workers."""
    started = stock_servers.Cluster({"ps": 1, "worker": 2})
    yield started
    started.close()


@pytest.fixture(scope="session")
def plan() -> TransferPlan:
    """A training step with tensors of several classes."""
    graph = training(batch=None)
    return analyze(graph.graph, fetches=graph.fetches, feeds=graph.feeds, batch_size=16)


@pytest.fixture(scope="session")
def loop_plan() -> TransferPlan:
    """A loop whose body runs on another task."""
    graph = loop()
    return analyze(graph.graph, fetches=graph.fetches, feeds=graph.feeds)
