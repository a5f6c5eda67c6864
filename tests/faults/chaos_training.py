# SPDX-License-Identifier: Apache-2.0
"""TensorFlow's part of chaos.py: one parameter server and two workers train under faults.

Every step is an update of one variable, by one operation, whose last element counts the steps. So it shows
whether a step that failed was applied, and whether one was applied twice; and the weights after the last
step are, to the bit, those of the same steps without faults.
"""

from __future__ import annotations

import random
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from faults.storm import CALM, corruption, faults, memory
from support.clusters import Task, within
from support.graphs import config, v1
from support.ports import free_ports
from support.usage import grown

DEADLINE_MS = 2000
STEPS = 40
STEP_S = 40.0
OFTEN, CORRUPTING = 0.004, 0.05
SHAPES = ((100, 200), (200, 200), (200, 10))
TASKS = (("ps", 0), ("worker", 0), ("worker", 1))
# What a step may end with that a fault hit. Everything else is a defect.
EXPECTED = (
    tf.errors.UnavailableError,
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
    tf.errors.ResourceExhaustedError,
    tf.errors.DataLossError,
)
# TensorFlow starts threads, and opens connections, when it first needs them, and keeps them; what a tensor
# takes of the arena differs, because its allocator cuts only large pieces up.
SLACK = {"threads": 8, "descriptors": 4, "arena bytes": 1 << 19}


def _initial() -> Any:
    """All weights, and the number of steps."""
    dice = np.random.default_rng(5)
    weights = [dice.normal(scale=0.1, size=shape).astype("f").ravel() for shape in SHAPES]
    return np.concatenate([*weights, np.zeros(1, "f")])


def _gradients(weights: list[Any], worker: int) -> list[Any]:
    """On the worker, by its half of the data."""
    dice = np.random.default_rng(3 + worker)
    x = dice.normal(size=(32, 100)).astype("f")
    y = np.tanh(x[:, :10])
    with tf.device(f"/job:worker/task:{worker}"):
        layer = tf.constant(x)
        for weight in weights[:-1]:
            layer = tf.nn.relu(layer @ weight)
        loss = tf.reduce_mean((layer @ weights[-1] - y) ** 2)
        gradients: list[Any] = tf.gradients(loss, weights)
        return gradients


class Training:
    """The tasks, the session and the graph."""

    def __init__(self, transport: str, always: str) -> None:
        ports = [f"127.0.0.1:{port}" for port in free_ports(3)]
        self._cluster = {"ps": ports[:1], "worker": ports[1:]}
        self._folder = Path(tempfile.mkdtemp(prefix="chaos-"))
        self._always = always
        self._environment = {
            "RDMATENSOR_TRANSPORTS": transport,
            "RDMATENSOR_FAULTS": CALM + self._always,
            "RDMATENSOR_CHECKSUM": "crc32c",
            "RDMATENSOR_DEADLINE_MS": str(DEADLINE_MS),
        }
        self.tasks = [self._start(job, index) for job, index in TASKS]
        for task in self.tasks:
            task.wait_until_ready()
        self._graph = tf.Graph()
        with self._graph.as_default():
            self._build()
        self._session = v1.Session(self.tasks[1].target, graph=self._graph, config=config())

    def _start(self, job: str, index: int) -> Task:
        log = self._folder / f"{job}{index}.log"
        return Task(self._cluster, job, index, "grpc+rdma", log, self._environment)

    def _build(self) -> None:
        with tf.device("/job:ps/task:0"):
            self._flat = v1.get_variable("flat", initializer=_initial(), use_resource=True)
            value = self._flat.read_value()
            sizes = [int(np.prod(shape)) for shape in SHAPES]
            parts = tf.split(value, [*sizes, 1])
            weights = [tf.reshape(p, s) for p, s in zip(parts, SHAPES, strict=False)]
        each = [_gradients(weights, worker) for worker in (0, 1)]
        with tf.device("/job:ps/task:0"):
            change = [tf.reshape(-0.05 * (a + b), [-1]) for a, b in zip(*each, strict=True)]
            self._update = self._flat.assign_add(tf.concat([*change, [1.0]], 0)).op
            self._begin = self._flat.initializer
            self._state = self._flat.read_value()

    def _run(self, fetches: Any) -> Any:
        return within(STEP_S, lambda: self._session.run(fetches))

    def _surely(self, fetches: Any, outcomes: Counter[str]) -> Any:
        """What can be done twice, until it is done."""
        end = time.monotonic() + 2 * STEP_S
        while True:
            try:
                return self._run(fetches)
            except EXPECTED as error:
                outcomes[f"training: {type(error).__name__} of others"] += 1
                assert time.monotonic() < end, f"nothing can be done any more: {error}"

    def epoch(self, steps: int, outcomes: Counter[str]) -> bytes:
        """The weights after `steps` steps from the initial ones."""
        self._surely(self._begin, outcomes)
        done, tried = 0, -1
        while done < steps:
            if done > tried:
                tried, end = done, time.monotonic() + 3 * STEP_S
            try:
                self._run(self._update)
                outcomes["training: steps"] += 1
                done += 1
            except EXPECTED as error:
                outcomes[f"training: {type(error).__name__}"] += 1
                made = int(self._surely(self._state, outcomes)[-1])
                assert made in (done, done + 1), f"step {done} was applied {made - done} times"
                outcomes["training: steps applied although they failed"] += made - done
                done = made
                assert time.monotonic() < end, f"step {done} fails again and again: {error}"
        state = self._surely(self._state, outcomes)
        assert int(state[-1]) == steps, f"{steps} steps were applied {state[-1]} times"
        return bytes(state.tobytes())

    def suffer(self, settings: list[str]) -> Counter[str]:
        """Faults from now on; how many there were until now."""
        total: Counter[str] = Counter()
        for task, setting in zip(self.tasks, settings, strict=True):
            counts = task.ask(f"faults {setting}{self._always}")
            total.update({f"fault: {kind}": count for kind, count in counts.items() if count})
        return total

    def calm(self) -> Counter[str]:
        """No more faults."""
        return self.suffer([CALM] * len(self.tasks))

    def usage(self) -> list[dict[str, int]]:
        """Of each task."""
        return [task.ask("usage") for task in self.tasks]

    def on_rpc(self) -> bool:
        """Whether a connection was given up."""
        return any(
            peer["state"] != "ready" for task in self.tasks for peer in task.ask("stats")["peers"]
        )

    @contextmanager
    def stopping(self, dice: random.Random) -> Iterator[None]:
        """Meanwhile tasks are stopped now and then, for up to longer than the deadline."""
        over = threading.Event()

        def stop() -> None:
            while not over.wait(dice.uniform(0.2, 4)):
                with dice.choice(self.tasks).stopped():
                    over.wait(dice.uniform(0, 1.5 * DEADLINE_MS / 1000))

        thread = threading.Thread(target=stop)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def logs(self) -> str:
        """The last lines of all tasks."""
        return "\n".join(f"--- {each.log}\n{each.log.read_text()[-2000:]}" for each in self.tasks)

    def close(self) -> None:
        """Kill all."""
        for task in self.tasks:
            task.kill()
        with suppress(Exception):
            self._session.close()


def _episodes(
    training: Training, dice: random.Random, end: float, tell: Callable[[str], object]
) -> Counter[str]:
    """Until the time is over, or a connection was given up, so that faults find nothing any more."""
    total: Counter[str] = Counter()
    reference = training.epoch(STEPS, Counter())
    training.epoch(STEPS, Counter())
    before = training.usage()
    while not total or time.monotonic() < end:
        settings = [faults(dice, OFTEN) + corruption(dice, CORRUPTING) for _ in TASKS]
        tell(f"training: {settings}")
        training.suffer(settings)
        with training.stopping(dice):
            state = training.epoch(STEPS, total)
        total["training: epochs"] += 1
        training.calm()
        assert state == reference, "the weights are not those of training without faults"
        assert training.epoch(3, total) != reference  # runs without faults, and ends what was open
        for index, task in enumerate(TASKS):
            more = grown(lambda i=index: training.usage()[i], before[index], SLACK)
            assert not more, f"{task} holds more than before: {more}"
        if training.on_rpc():
            total["training: tasks restarted"] += 1
            break
    return total + training.calm()


def run(
    seconds: float, seed: int, tell: Callable[[str], object], transport: str = "shm"
) -> Counter[str]:
    """Episodes for so long; how often what happened. AssertionError for what must not be."""
    total: Counter[str] = Counter()
    dice = random.Random(f"{seed} training")
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        training = Training(transport, memory(dice))
        try:
            total += _episodes(training, dice, end, tell)
        except BaseException:
            print(training.logs())
            raise
        finally:
            training.close()
    return total
