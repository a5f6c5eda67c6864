# SPDX-License-Identifier: Apache-2.0
"""A TensorFlow server in its own process: python -m support.server CLUSTER_JSON JOB INDEX PROTOCOL.

It answers each line of standard input (a command) with one line of JSON on standard output. "faults TEXT"
puts the setting FAULTS in force, and answers how many faults there were. "trace FILE" begins a trace,
"traced" writes it. "usage" answers what the process holds of the system and of the arena. "fork" answers how
a child ended that does nothing.

TEST_DEVICE_LIBRARY in the environment is a library with devices that TensorFlow is to have. "device
NAME=VALUE ..." sets numbers that it exports, and answers those and "waiting" and "used". "pinned" and "trim":
support/device_of_tests.py.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import sys
from collections.abc import Callable
from typing import Any

import tensorflow as tf

import rdmatensor.faults
import rdmatensor.metrics
import rdmatensor.tensorflow
from support import device_of_tests
from support.usage import usage


def metrics() -> str:
    """Where they are served from now on."""
    endpoint = rdmatensor.metrics.serve(0)
    assert endpoint
    return endpoint.address


def held() -> dict[str, int]:
    """What must not grow while the server works."""
    return usage() | {"arena bytes": rdmatensor.tensorflow.stats()["arena"]["used_bytes"]}


def fork() -> int:
    """The state in which a child ended that drops what it shares with this process."""
    child = os.fork()
    if child == 0:
        gc.collect()
        os._exit(0)
    return os.waitpid(child, 0)[1]


def main() -> None:
    """Start the server, then obey."""
    cluster, job, index, protocol = sys.argv[1:5]
    device_of_tests.load()
    server = tf.distribute.Server(
        tf.train.ClusterSpec(json.loads(cluster)),
        job_name=job,
        task_index=int(index),
        protocol=protocol,
    )
    traces = contextlib.ExitStack()
    commands: dict[str, Callable[[], Any]] = {
        "stats": rdmatensor.tensorflow.stats,
        "reset": rdmatensor.tensorflow.reset_stats,
        "plan": rdmatensor.tensorflow.plan,
        "pid": os.getpid,
        "usage": held,
        "fork": fork,
        "pinned": device_of_tests.pinned,
        "trim": device_of_tests.trim,
        "faults": rdmatensor.faults.counts,
        "metrics": metrics,
        "trace": lambda: None,
        "traced": traces.close,
    }
    print(json.dumps({"target": server.target, "pid": os.getpid()}), flush=True)
    for line in sys.stdin:
        command, _, text = line.strip().partition(" ")
        if command == "faults":
            rdmatensor.config.set("FAULTS", text)
        elif command == "device":
            print(json.dumps(device_of_tests.numbers(text)), flush=True)
            continue
        elif command == "trace":
            traces.enter_context(rdmatensor.tensorflow.trace(text))
        print(json.dumps(commands[command]()), flush=True)
    # The parent is gone, or wants an end. Servers cannot be stopped: leave without ceremony.
    os._exit(0)


if __name__ == "__main__":
    main()
