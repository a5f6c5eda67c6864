# SPDX-License-Identifier: Apache-2.0
"""Sessions whose graphs run exactly as they are written."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import tensorflow as tf

from support.clusters import STEP_S, Cluster, within

v1 = tf.compat.v1
_numbers = itertools.count()
TASK0 = "/job:worker/task:0"
TASK1 = "/job:worker/task:1"
REFILL_S = 3.0


def config() -> Any:
    """No constant folding and no pruning of transfers: what the test sends is sent."""
    config = v1.ConfigProto()
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    config.graph_options.optimizer_options.opt_level = v1.OptimizerOptions.L0
    # A master that asks a dead worker would otherwise wait for it.
    config.operation_timeout_in_ms = int(STEP_S * 1000)
    return config


class Session:
    """A session on worker 0 in which every step has a deadline."""

    def __init__(self, cluster: Cluster, build: Callable[[], Any], settings: Any = None) -> None:
        self.graph = tf.Graph()
        # Servers keep variables beyond a session, by name: no test may find another's.
        container = f"container{next(_numbers)}"
        with self.graph.as_default(), self.graph.container(container):
            self.built = build()
            initializer = v1.global_variables_initializer()
        self.raw = v1.Session(cluster.target, graph=self.graph, config=settings or config())
        self.run(initializer)

    def run(
        self, fetches: Any, feeds: dict[Any, Any] | None = None, timeout_s: float = STEP_S
    ) -> Any:
        """One step."""
        return within(timeout_s, lambda: self.raw.run(fetches, feeds))

    def run_filling(
        self, fill: Any, fetches: Any, feeds: dict[Any, Any] | None = None, at_once: int = 1
    ) -> list[Any]:
        """The results of steps that each take an item from a queue, which `fill` puts there.

        TensorFlow may leave a part of a step behind that was cancelled early, also over grpc: it takes
        an item from the queue. So there are items until all steps are done.
        """
        results: list[Any] = []

        def step() -> None:
            results.append(self.raw.run(fetches, feeds))

        threads = [threading.Thread(target=step, daemon=True) for _ in range(at_once)]
        for thread in threads:
            thread.start()
        for _ in threads:
            self.run(fill)
        end = time.monotonic() + STEP_S
        for thread in threads:
            thread.join(REFILL_S)
            while thread.is_alive():
                assert time.monotonic() < end, f"still running after {STEP_S:.0f} s"
                self.run(fill)
                thread.join(REFILL_S)
        assert len(results) == at_once, "a step failed"
        return results


@contextmanager
def session(cluster: Cluster, build: Callable[[], Any], settings: Any = None) -> Iterator[Session]:
    """A session over the graph that `build` makes; `built` is what it returned. `settings`: see
    `config`."""
    opened = Session(cluster, build, settings)
    try:
        yield opened
    finally:
        within(STEP_S, opened.raw.close)


def abandon(raw: Any) -> None:
    """Closes a session, one of whose tasks is dead, in the background: it asks the task for long, and
    then fails."""

    def close() -> None:
        with suppress(tf.errors.OpError):
            raw.close()

    threading.Thread(target=close, daemon=True).start()


def cross(tensor: Any) -> Any:
    """`tensor` as it arrives on worker 0."""
    with tf.device(TASK0):
        return tf.identity(tensor)
