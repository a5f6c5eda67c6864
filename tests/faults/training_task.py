# SPDX-License-Identifier: Apache-2.0
"""A TensorFlow server under faults: as tests/tensorflow/server.py, with two more commands:

usage          what the process holds of the system
faults TEXT    the setting FAULTS from now on; answers how many faults there were
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import tensorflow as tf

sys.path.append(str(Path(__file__).parent))

import rdmatensor.faults
import rdmatensor.tensorflow
from usage import usage


def _answer(command: str, text: str) -> Any:
    if command == "faults":
        rdmatensor.config.set("FAULTS", text)
        return rdmatensor.faults.counts()
    if command == "stats":
        return rdmatensor.tensorflow.stats()
    stats = rdmatensor.tensorflow.stats()
    return usage() | {"arena bytes": stats["arena"]["used_bytes"]}


def main() -> None:
    """Start the server, then obey."""
    cluster, job, index, protocol = sys.argv[1:5]
    server = tf.distribute.Server(
        tf.train.ClusterSpec(json.loads(cluster)),
        job_name=job,
        task_index=int(index),
        protocol=protocol,
    )
    print(json.dumps({"target": server.target, "pid": os.getpid()}), flush=True)
    for line in sys.stdin:
        command, _, text = line.strip().partition(" ")
        print(json.dumps(_answer(command, text)), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
