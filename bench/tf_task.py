# SPDX-License-Identifier: Apache-2.0
"""A process of a benchmark: a TensorFlow server of a cluster, or a local model without a server.

Task 0 of a cluster is also the client. Sessions run in its process, so messages between client and master
add nothing to a step.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf

import rdmatensor.tensorflow
from converge_graphs import LEARNERS, Learner
from line import leave
from line import serve as answer
from paper_graphs import Replica
from tf_cases import Case
from tf_graphs import CONSUMER, OWNER, UNTIMED_STEPS, Training, Transfer, Workload

_PLUGIN = "librdmatensor_tensorflow"
_servers: list[Any] = []

Handlers = Mapping[str, Callable[..., Mapping[str, Any]]]


class Client:
    """Runs one workload at a time in sessions on `target`."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._workload: Workload | None = None

    def transfer(self, **case: Any) -> Mapping[str, Any]:
        """Build a transfer case, and compare every element that arrives with what was sent."""
        workload = Transfer(Case(**case), self._target)
        self._workload = workload
        workload.verify()
        return {}

    def training(self, batch: int) -> Mapping[str, Any]:
        """Build a training step: on both tasks, or locally if there is no server."""
        devices = (OWNER, CONSUMER) if self._target else ("", "")
        self._workload = Training(batch, self._target, *devices)
        return {}

    def replica(self, verify: bool, **about: Any) -> Mapping[str, Any]:
        """Build a step of one of the paper's models; `verify` compares every element that arrives."""
        workload = Replica(**about, target=self._target)
        self._workload = workload
        if verify:
            workload.verify()
        return {}

    def learner(self, name: str, workers: int) -> Mapping[str, Any]:
        """Build the training of one of the models of bench_converge.py."""
        self._workload = LEARNERS[name](workers, self._target)
        return {"loss_wanted": self._workload.target}

    def learn(self, steps: int) -> Mapping[str, Any]:
        """Train, and return the time and the loss of each step."""
        assert isinstance(self._workload, Learner)
        return self._workload.learn(steps)

    def block(self, steps: int) -> Mapping[str, Any]:
        """Time `steps` steps. The answer counts untimed steps as well, and has the losses, if any."""
        assert self._workload is not None
        seconds, fetched = self._workload.block(steps)
        losses = fetched if isinstance(self._workload, Training) else []
        return {"seconds": seconds, "losses": losses, "steps": steps + UNTIMED_STEPS}

    def close(self) -> Mapping[str, Any]:
        """Free the workload's variables."""
        if self._workload is not None:
            self._workload.close()
        self._workload = None
        return {}


def process_facts() -> Mapping[str, Any]:
    """Whether the plugin is loaded, and the process's threads, memory, processor time and id."""
    status = dict(
        line.split(":", 1)
        for line in Path("/proc/self/status").read_text().splitlines()
        if ":" in line
    )
    return {
        "plugin": _PLUGIN in Path("/proc/self/maps").read_text(),
        "threads": int(status["Threads"]),
        "resident_bytes": int(status["VmRSS"].split()[0]) * 1024,
        "cpu_seconds": time.process_time(),
        "pid": os.getpid(),
    }


def reset() -> Mapping[str, Any]:
    """Set the plugin's counters to zero."""
    rdmatensor.tensorflow.reset_stats()
    return {}


def commands_of(client: object) -> Handlers:
    """The public methods of an object, which answer the commands of their names."""
    return {name: getattr(client, name) for name in dir(client) if not name.startswith("_")}


def serve_with(chief: Callable[[dict[str, list[str]], str], object]) -> None:
    """Serve a task of a cluster: the chief, whose methods answer commands, or a server."""

    def start(cluster: dict[str, list[str]], job: str, index: int, protocol: str) -> Handlers:
        if job == "chief":
            return commands_of(chief(cluster, protocol))
        start_server(cluster, job, index, protocol)
        return {}

    serve(start)


def serve(start: Callable[[dict[str, list[str]], str, int, str], Handlers]) -> None:
    """Start this task and answer the benchmark's commands.

    `start` gets the program's arguments: the cluster as JSON, the job, the index of the task, and the
    protocol. It returns the handlers of commands.
    """
    cluster, job, index, protocol = sys.argv[1:]
    if protocol != "grpc" and not rdmatensor.tensorflow.loaded():
        # TensorFlow's own message would be that no server factory is registered.
        raise SystemExit(f"{protocol} is not available: {rdmatensor.tensorflow.why_not()}")
    handlers = start(json.loads(cluster), job, int(index), protocol)
    stats = {"stats": rdmatensor.tensorflow.stats, "reset": reset}
    answer({**handlers, **stats, "process": process_facts})
    leave()


def start_server(cluster: dict[str, list[str]], job: str, index: int, protocol: str) -> str:
    """The target of a server that runs until this process ends."""
    spec = tf.train.ClusterSpec(cluster)
    server = tf.distribute.Server(spec, job_name=job, task_index=index, protocol=protocol)
    _servers.append(server)
    return str(server.target)


def connect(cluster: dict[str, list[str]], protocol: str) -> Any:
    """The chief's ClusterCoordinator; None if the chief is alone."""
    if set(cluster) == {"chief"}:
        return None
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(cluster), task_type="chief", task_id=0, rpc_layer=protocol
    )
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    return tf.distribute.coordinator.ClusterCoordinator(strategy)


def main() -> None:
    """Run a server; or, without arguments, a process without one."""
    if len(sys.argv) > 1:
        serve(lambda *task: commands_of(Client(start_server(*task))))
    answer({**commands_of(Client("")), "process": process_facts})
    leave()


if __name__ == "__main__":
    main()
