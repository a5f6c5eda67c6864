# SPDX-License-Identifier: Apache-2.0
"""Steps that are timed, as TensorFlow graphs. All protocols run the same graph.

Device strings pin both ends of each transfer.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from typing import Any

import tensorflow as tf

from member import timed_values
from tf_cases import ALONE

v1 = tf.compat.v1


def task(index: int) -> str:
    """The device of task `index`; in the cluster where nothing is remote, that of its only task."""
    return f"/job:worker/task:{0 if os.environ.get(ALONE) else index}"


OWNER = task(1)
CONSUMER = task(0)

# tests/plugin/pluggable_device.c defines the device.
DEVICE = "/device:TEST_DEVICE:0"

UNTIMED_STEPS = 1


class Workload(ABC):
    """A graph and its session. `target` is a server's address, "" for a session of this process."""

    config: Any = None  # of the session

    def __init__(self, name: str, target: str) -> None:
        self.graph = tf.Graph()
        self._target = target
        # With a container of its own, `close` frees the variables on the other task as well.
        self._container = "".join(letter for letter in name if letter.isalnum())
        with self.graph.as_default(), self.graph.container(self._container):
            self.build()
        self.session = v1.Session(target, graph=self.graph, config=self.config)
        self.initialise()

    @abstractmethod
    def build(self) -> None:
        """Add the operations to the default graph."""

    @abstractmethod
    def initialise(self) -> None:
        """Give the variables their first values."""

    def before_block(self) -> None:
        """Prepare a block of steps; this is not timed."""
        return

    @abstractmethod
    def step(self) -> Any:
        """Run one step, which is timed, and return what it fetched."""

    def check(self, fetched: Any) -> None:
        """ValueError if a step fetched something wrong."""
        return

    def losses(self, fetched: list[Any]) -> list[Any]:
        """What clusters are compared by, of what several steps fetched."""
        return []

    def block(self, steps: int) -> tuple[list[float], list[Any]]:
        """Seconds and fetched values of `steps` steps.

        UNTIMED_STEPS run before them, because caches and threads still belong to the previous cluster.
        """
        self.before_block()
        for _ in range(UNTIMED_STEPS):
            self.step()
        seconds, fetched = timed_values(self.step, steps)
        for value in fetched:
            self.check(value)
        return seconds, fetched

    def close(self) -> None:
        """Close the session and free the variables."""
        self.session.close()
        if self._target:
            v1.Session.reset(self._target, [self._container])
