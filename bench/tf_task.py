# SPDX-License-Identifier: Apache-2.0
"""A process of a benchmark: a TensorFlow server of a cluster, or a local model without a server.

Task 0 of a cluster is also the client. Sessions run in its process, so messages between client and master
add nothing to a step.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import load_library

import rdmatensor.tensorflow
from member import serve as answer
from tf_cases import DEVICE_LIBRARY
from tf_graphs import UNTIMED_STEPS, Workload
from tf_learners import LEARNERS, Learner, Perceptron
from tf_transfers import BetweenDevices, Replica, Transfer

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
        workload = Transfer(**case, target=self._target)
        self._workload = workload
        workload.verify()
        return {}

    def devices(self, **case: Any) -> Mapping[str, Any]:
        """Build a case of transfers between devices."""
        self._workload = BetweenDevices(**case, target=self._target)
        return {}

    def training(self, batch: int) -> Mapping[str, Any]:
        """Build a training step: on both tasks, or locally if there is no server."""
        self._workload = Perceptron(batch, self._target)
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
        learner = LEARNERS[name](workers, self._target)
        self._workload = learner
        return {"loss_wanted": learner.target}

    def learn(self, steps: int) -> Mapping[str, Any]:
        """Train, and return the time and the loss of each step."""
        assert isinstance(self._workload, Learner)
        return self._workload.learn(steps)

    def block(self, steps: int) -> Mapping[str, Any]:
        """Time `steps` steps. The answer counts untimed steps as well, and has the losses, if any."""
        assert self._workload is not None
        seconds, fetched = self._workload.block(steps)
        losses = self._workload.losses(fetched)
        return {"seconds": seconds, "losses": losses, "steps": steps + UNTIMED_STEPS}

    def close(self) -> Mapping[str, Any]:
        """Free the workload's variables."""
        if self._workload is not None:
            self._workload.close()
        self._workload = None
        return {}


def process_facts() -> Mapping[str, Any]:
    """Whether the plugin is loaded."""
    return {"plugin": _PLUGIN in Path("/proc/self/maps").read_text()}


def reset() -> Mapping[str, Any]:
    """Set the plugin's counters to zero."""
    rdmatensor.tensorflow.reset_stats()
    return {}


def commands_of(client: object) -> Handlers:
    """The public methods of an object, which answer the commands of their names."""
    return {name: getattr(client, name) for name in dir(client) if not name.startswith("_")}


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


def start_server(cluster: dict[str, list[str]], job: str, index: int, protocol: str) -> str:
    """The target of a server that runs until this process ends."""
    spec = tf.train.ClusterSpec(cluster)
    server = tf.distribute.Server(spec, job_name=job, task_index=index, protocol=protocol)
    _servers.append(server)
    return str(server.target)


def main() -> None:
    """Run a server; or, without arguments, a process without one."""
    if library := os.environ.get(DEVICE_LIBRARY):
        load_library.load_pluggable_device_library(library)
    if len(sys.argv) > 1:
        serve(lambda *task: commands_of(Client(start_server(*task))))
    answer({**commands_of(Client("")), "process": process_facts})


if __name__ == "__main__":
    main()
