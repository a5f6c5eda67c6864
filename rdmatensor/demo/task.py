# SPDX-License-Identifier: Apache-2.0
"""One TensorFlow server of the demo, a parameter server or a worker, in its own process."""

from __future__ import annotations

import json
import sys

import tensorflow as tf

from rdmatensor.demo.control import Line, leave
from rdmatensor.demo.paths import require_plugin, task_paths


def start(
    cluster: dict[str, list[str]], job: str, index: int, protocol: str
) -> tf.distribute.Server:
    """Starts the server of a task."""
    config = tf.compat.v1.ConfigProto()
    # Each worker may hold one thread of the parameter server's pool in a blocking operation; on a
    # machine with few cores the default pool would leave none for the others.
    config.inter_op_parallelism_threads = max(4, len(cluster["worker"]) + 2)
    return tf.distribute.Server(
        tf.train.ClusterSpec(cluster),
        job_name=job,
        task_index=index,
        protocol=protocol,
        config=config,
    )


def serve(line: Line, cluster: dict[str, list[str]], job: str, index: int, protocol: str) -> None:
    """Runs the server until the launcher closes the line, and answers the command "paths"."""
    server = start(cluster, job, index, protocol)
    line.emit("ready", target=server.target)
    line.serve({"paths": lambda: task_paths(protocol).as_json()})


def main() -> None:
    """Takes the cluster as JSON, the job's name, the task's index and the protocol from the arguments."""
    line = Line()
    cluster, job, index, protocol = sys.argv[1:]
    require_plugin(protocol)
    serve(line, json.loads(cluster), job, int(index), protocol)
    leave(0)


if __name__ == "__main__":
    main()
