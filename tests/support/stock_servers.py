# SPDX-License-Identifier: Apache-2.0
"""TensorFlow servers in a process of their own, and what TensorFlow makes of a graph there."""

from __future__ import annotations

import json
import re
import select
import subprocess
from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from graph_analyzer.read.devices import parse
from support import warm
from support.placed_graphs import Step
from support.ports import free_ports
from support.waits import PATIENCE

v1 = tf.compat.v1

_SERVE = """
import sys, json
import tensorflow as tf
cluster, protocol = json.loads(sys.argv[1]), sys.argv[2]
servers = [tf.distribute.Server(cluster, job, task, protocol=protocol)
           for job, addresses in cluster.items() for task in range(len(addresses))]
print("ready", flush=True)
sys.stdin.read()
"""


class Cluster:
    """Servers of the jobs given; sessions talk to worker 0."""

    def __init__(self, jobs: dict[str, int], protocol: str = "grpc") -> None:
        ports = iter(free_ports(sum(jobs.values())))
        self.addresses = {
            job: [f"127.0.0.1:{next(ports)}" for _ in range(count)] for job, count in jobs.items()
        }
        self.target = f"grpc://{self.addresses['worker'][0]}"
        self._process = subprocess.Popen(
            [warm.python(), "-c", _SERVE, json.dumps(self.addresses), protocol],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], PATIENCE)
        assert ready and self._process.stdout.readline() == "ready\n"

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()

    def run_function(self, protocol: str, module: str = "support.function_task") -> dict[str, Any]:
        """What a program that connects to these servers says."""
        command = [
            warm.python(),
            "-m",
            module,
            json.dumps(self.addresses),
            protocol,
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=100)
        assert done.returncode == 0, done.stderr[-4000:]
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def sent(self, step: Step, optimize: bool) -> dict[tuple[str, str, str], int]:
        """Runs a step, and returns what travels by the graphs that TensorFlow gave to its executors: the
        type of each tensor, by source, destination and name."""
        config = v1.ConfigProto()
        config.graph_options.rewrite_options.disable_meta_optimizer = not optimize
        # Each task folds constants in its own part, after edges have got their names.
        config.graph_options.optimizer_options.opt_level = v1.OptimizerOptions.L0
        metadata = v1.RunMetadata()
        with v1.Session(self.target, graph=step.graph, config=config) as session:
            if step.start is not None:
                session.run(step.start)
            options = v1.RunOptions(output_partition_graphs=True)
            session.run(step.fetches, step.values, options=options, run_metadata=metadata)
        return sent_by(metadata.partition_graphs)


def sent_by(partition_graphs: Iterable[Any]) -> dict[tuple[str, str, str], int]:
    """What the send nodes of these graphs send to other tasks."""
    found = {}
    for graph in partition_graphs:
        for node in graph.node:
            if node.op in ("_Send", "_HostSend") and not node.attr["client_terminated"].b:
                found.update(_edge(node))
    return found


def _edge(node: Any) -> dict[tuple[str, str, str], int]:
    source = parse(node.attr["send_device"].s.decode())
    destination = parse(node.attr["recv_device"].s.decode())
    producer = node.input[0] if ":" in node.input[0] else node.input[0] + ":0"
    # What a client feeds is named after the tensor that it replaces.
    producer = re.sub(r"^_recv_(.+)_(\d+):0$", r"\1:\2", producer)
    # Control edges between tasks become empty tensors of such nodes.
    if source.task_name == destination.task_name or re.search(r"/ctrl(_S|/_)\d+:", producer):
        return {}
    dtype = int(node.attr["T"].type) % 100  # reference types are the plain ones plus 100
    return {(source.task_name, destination.task_name, producer): dtype}
