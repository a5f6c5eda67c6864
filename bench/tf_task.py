# SPDX-License-Identifier: Apache-2.0
"""A process of a benchmark: one of a cluster's TensorFlow servers, or a local model without a server.

Task 0 of a cluster is also the client: sessions run in its process, so no message between client and
master adds to a step.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf

import rdmatensor.metrics
import rdmatensor.tensorflow
from converge_graphs import LEARNERS, Learner
from paper_graphs import Replica
from rdmatensor.demo.control import Line, leave
from rdmatensor.demo.paths import require_plugin
from tf_cases import Case
from tf_graphs import CONSUMER, OWNER, UNTIMED_STEPS, Training, Transfer, Workload

_PLUGIN = "librdmatensor_tensorflow"


class Client:
    """Runs one workload at a time on a session `target` and answers the commands about it."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._workload: Workload | None = None

    def handlers(self) -> dict[str, Any]:
        """Commands by name."""
        return {
            "transfer": self.transfer,
            "training": self.training,
            "replica": self.replica,
            "learner": self.learner,
            "learn": self.learn,
            "block": self.block,
            "close": self.close,
            "process": process_facts,
        }

    def transfer(self, **case: Any) -> Mapping[str, Any]:
        """Build a transfer case and verify, element by element, that what is sent arrives."""
        workload = Transfer(Case(**case), self._target)
        self._workload = workload
        workload.verify()
        return {}

    def training(self, batch: int) -> Mapping[str, Any]:
        """Build a training step: over both tasks, or without devices if there is no server."""
        devices = (OWNER, CONSUMER) if self._target else ("", "")
        self._workload = Training(batch, self._target, *devices)
        return {}

    def replica(self, verify: bool, **about: Any) -> Mapping[str, Any]:
        """Build a step of one of the paper's models and, if asked to, verify what arrives."""
        workload = Replica(**about, target=self._target)
        self._workload = workload
        if verify:
            workload.verify()
        return {}

    def learner(self, name: str, workers: int) -> Mapping[str, Any]:
        """Build the training of one of the models of converge.py."""
        self._workload = LEARNERS[name](workers, self._target)
        return {"loss_wanted": self._workload.target}

    def learn(self, steps: int) -> Mapping[str, Any]:
        """Train, and say how long each step took and what the loss was."""
        assert isinstance(self._workload, Learner)
        return self._workload.learn(steps)

    def block(self, steps: int) -> Mapping[str, Any]:
        """Time `steps` steps; losses are given where the workload has them, "steps" counts all made."""
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
    """Whether the plugin is in this process, and what the process holds."""
    status = dict(
        line.split(":", 1)
        for line in Path("/proc/self/status").read_text().splitlines()
        if ":" in line
    )
    return {
        "plugin": _PLUGIN in Path("/proc/self/maps").read_text(),
        "threads": int(status["Threads"]),
        "resident_bytes": int(status["VmRSS"].split()[0]) * 1024,
        "pid": os.getpid(),
    }


def reset() -> Mapping[str, Any]:
    """Begin to count anew."""
    rdmatensor.tensorflow.reset_stats()
    return {}


def metrics() -> Mapping[str, Any]:
    """Serve them from now on."""
    endpoint = rdmatensor.metrics.serve(0)
    assert endpoint
    return {"address": endpoint.address}


def main() -> None:
    """Arguments: the cluster as JSON, task index, protocol; or none for a process without a server."""
    line = Line()
    if len(sys.argv) == 1:
        line.emit("ready")
        line.serve(Client("").handlers())
        leave(0)
    cluster, index, protocol = sys.argv[1:]
    require_plugin(protocol)
    server = tf.distribute.Server(
        tf.train.ClusterSpec(json.loads(cluster)),
        job_name="worker",
        task_index=int(index),
        protocol=protocol,
    )
    line.emit("ready")
    handlers = Client(server.target).handlers()
    counters = {"stats": rdmatensor.tensorflow.stats, "reset": reset, "metrics": metrics}
    line.serve(handlers | counters)
    leave(0)


if __name__ == "__main__":
    main()
