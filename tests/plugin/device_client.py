# SPDX-License-Identifier: Apache-2.0
"""A client that drives its own device and those of two tasks eagerly: device_client.py CLUSTER_JSON.

TEST_DEVICE_LIBRARY names the library of the devices. Checks the values, and prints as JSON what it counted.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import load_library

import rdmatensor.tensorflow
from plugin.remote_client import TASK0, TASK1
from support.ports import free_ports

DEVICE = "/device:TEST_DEVICE:0"
SIZES = (3, 5000, 100_000)


def operations(values: Any) -> Any:
    """4 x^2, of which each operation runs in another process."""
    with tf.device(f"/job:client/task:0{DEVICE}"):
        here = tf.identity(tf.constant(values))
    with tf.device(TASK0 + DEVICE):
        twice = tf.raw_ops.AddV2(x=here, y=here)
    with tf.device(TASK1 + DEVICE):
        return tf.raw_ops.Mul(x=twice, y=twice)


@tf.function
def function(values: Any) -> Any:
    """The same, and the first task adds its part once more."""
    with tf.device(TASK0 + DEVICE):
        twice = tf.raw_ops.AddV2(x=values, y=values)
    with tf.device(TASK1 + DEVICE):
        square = tf.raw_ops.Mul(x=twice, y=twice)
    with tf.device(TASK0 + DEVICE):
        return tf.raw_ops.AddV2(x=square, y=twice)


def main() -> None:
    """Connect, and run both several times."""
    load_library.load_pluggable_device_library(os.environ["TEST_DEVICE_LIBRARY"])
    # It would put operations there that the device does not have.
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    cluster = json.loads(sys.argv[1]) | {"client": [f"127.0.0.1:{free_ports(1)[0]}"]}
    tf.config.experimental_connect_to_cluster(
        tf.train.ClusterSpec(cluster), job_name="client", protocol="grpc+rdma"
    )
    for number, size in enumerate(SIZES * 3):
        values = np.arange(number, number + size, dtype="f") % 1000
        result = operations(values)
        assert "task:1" in result.device and "TEST_DEVICE" in result.device, result.device
        np.testing.assert_array_equal(result.numpy(), 4 * values * values)
        expected = 4 * values * values + 2 * values
        np.testing.assert_array_equal(function(tf.constant(values)).numpy(), expected)
    stats = rdmatensor.tensorflow.stats()
    print(json.dumps({"paths": stats["paths"], "rpc_reasons": stats["rpc_reasons"]}), flush=True)
    # Servers cannot be stopped: leave without ceremony.
    os._exit(0)


if __name__ == "__main__":
    main()
