# SPDX-License-Identifier: Apache-2.0
"""The arena is registered with CUDA's driver where the process uses CUDA, and nowhere else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from plugin.devices import DEVICE0, DEVICE1
from support.clusters import Cluster
from support.graphs import session, v1

ELEMENTS = 2_000_000  # 8 MB


@pytest.fixture
def cluster(device_library: Path, cuda_driver: str, tmp_path: Path) -> Iterator[Cluster]:
    """Two workers, each with a device. The first one uses CUDA."""
    both = {"TEST_DEVICE_LIBRARY": str(device_library)}
    with_cuda = both | {"TEST_CUDA_DRIVER": cuda_driver}
    made = Cluster(("grpc+rdma", "grpc+rdma"), tmp_path, {0: with_cuda, 1: both})
    yield made
    made.close()


def test_arena(cluster: Cluster) -> None:
    """Also what it grows by later. Its pages stay then, for the driver knows where they were."""
    with_cuda, without = cluster.tasks

    def move(count: int) -> None:
        def build() -> Any:
            with tf.device(DEVICE0):
                stored = v1.get_variable("v", initializer=np.ones(ELEMENTS, "f")).read_value()
                sent = [stored + tf.constant(float(number)) for number in range(count)]
            with tf.device(DEVICE1):
                return [each * each for each in sent]

        with session(cluster, build) as opened:
            for number, result in enumerate(opened.run(opened.built), start=1):
                assert (result == number * number).all()

    assert (with_cuda.ask("pinned"), without.ask("pinned")) == (0, None)
    for count in (1, 20):
        move(count)
        reserved = cluster.stats(0)["arena"]["reserved_bytes"]
        assert with_cuda.ask("pinned") == reserved > 4 * ELEMENTS * count
        assert without.ask("pinned") is None
    assert with_cuda.ask("trim") == 0
    assert without.ask("trim") > 0
