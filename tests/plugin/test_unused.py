# SPDX-License-Identifier: Apache-2.0
"""A program that does not ask for grpc+rdma runs as it does without the plugin."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

# Many tensors of 16 MB, made and dropped. What the allocator gives back to the kernel costs a fault for each
# page when it is next used: 4096 of 16 MB.
PROGRAM = """
import resource
import tensorflow as tf

def step(x):
    return tf.add_n([x + float(i) for i in range(8)])

x = tf.ones([4 << 20])
for _ in range(3):
    step(x)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(4):
    step(x)
print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / 4)
"""


def faults_per_step(disable: str) -> float:
    """With TensorFlow's default on processors of today, oneDNN, whose allocator keeps large memory."""
    variables = {"TF_ENABLE_ONEDNN_OPTS": "1", "RDMATENSOR_DISABLE": disable}
    done = subprocess.run(
        [sys.executable, "-P", "-c", PROGRAM],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return float(done.stdout)


def test_memory_is_kept_as_without_the_plugin() -> None:
    stock = faults_per_step("1")
    if stock > 100:
        pytest.skip(f"TensorFlow itself keeps no memory here: {stock} page faults a step")
    assert faults_per_step("0") < 200
