# SPDX-License-Identifier: Apache-2.0
"""Servers shared by the tests: starting TensorFlow takes seconds, so few clusters serve many tests."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
sys.path.insert(0, str(Path(__file__).parent))

pytest.importorskip("tensorflow", reason="TensorFlow is not installed")

import rdmatensor.tensorflow

if not rdmatensor.tensorflow.loaded():
    # Not a skip: with TensorFlow installed, a plugin that is missing is a defect.
    raise RuntimeError(f"no plugin: {rdmatensor.tensorflow.why_not()}")

from clusters import Cluster


@pytest.fixture(scope="session")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(["grpc+rdma", "grpc+rdma"], tmp_path_factory.mktemp("rdma"))
    yield cluster
    cluster.close()


@pytest.fixture(scope="session")
def reading_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Tensors are read into the receiver's memory, as over transports that cannot map the sender's."""
    settings = {"RDMATENSOR_ALIAS_BYTES": "1T"}
    folder = tmp_path_factory.mktemp("reading")
    cluster = Cluster(["grpc+rdma", "grpc+rdma"], folder, {0: settings, 1: settings})
    yield cluster
    cluster.close()


@pytest.fixture
def cluster(request: pytest.FixtureRequest) -> Cluster:
    """Two workers over grpc+rdma, with counters at zero. See clusters.BOTH_WAYS."""
    shared: Cluster = request.getfixturevalue(getattr(request, "param", "shared_cluster"))
    shared.reset_stats()
    return shared


@pytest.fixture
def own_cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Two workers over grpc+rdma that no other test uses: they may be killed."""
    cluster = Cluster(["grpc+rdma", "grpc+rdma"], tmp_path)
    yield cluster
    cluster.close()
