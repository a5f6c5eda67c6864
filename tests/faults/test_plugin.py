# SPDX-License-Identifier: Apache-2.0
"""Faults in what only the plugin does with the transport."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow", reason="TensorFlow is not installed")
for folder in ("tensorflow", "warm"):
    sys.path.append(str(Path(__file__).parents[1] / folder))

from clusters import Cluster, within  # noqa: E402
from graphs import TASK1, cross, session, v1  # noqa: E402


def test_a_write_that_fails_after_it_waited(tmp_path: Path) -> None:
    """A planned tensor is not written although posting it succeeded: the step fails at once, and later
    ones find another way."""
    faults = {"RDMATENSOR_FAULTS": "seed=1,unmapped=1,credit=0.5:5ms,post=0.3"}
    cluster = Cluster(["grpc+rdma", "grpc+rdma"], tmp_path, {1: faults})

    def build() -> Any:
        with tf.device(TASK1):
            value = v1.placeholder(tf.float32, [])
            several = [tf.fill([2000], value + i) for i in range(4)]
        return value, [cross(each) for each in several]

    failed = 0
    try:
        with session(cluster, build) as opened:
            value, results = opened.built
            for step in range(30):
                try:
                    got = within(10, lambda s=step: opened.raw.run(results, {value: float(s)}))
                except (tf.errors.UnavailableError, tf.errors.AbortedError):
                    failed += 1
                else:
                    for i, each in enumerate(got):
                        np.testing.assert_array_equal(each, np.full(2000, step + i, "f"))
            assert 0 < failed < 30
    finally:
        cluster.close()
