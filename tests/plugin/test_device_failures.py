# SPDX-License-Identifier: Apache-2.0
"""Copies of a device that fail, wait, or are under way when something else ends.

The device fails or waits when it is told to (pluggable_device.c). Memory and loans that a failure leaves
behind would add up, so failures are repeated.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from plugin.devices import CPU1, DEVICE0, DEVICE1, UNPLANNED, two_devices
from plugin.planned import warm_up
from support import WHOLE
from support.clusters import STEP_S, Cluster
from support.graphs import Session, abandon, session, v1
from support.usage import grown
from support.waits import until

ELEMENTS = 50_000
TENSORS = 5
REPEATED = 1000 if WHOLE else 50
WAYS = {"planned": {}, "unplanned": UNPLANNED}


@pytest.fixture(scope="module", params=WAYS)
def cluster(
    request: pytest.FixtureRequest,
    device_library: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Cluster]:
    """Two workers, each with a device."""
    made = two_devices(device_library, tmp_path_factory.mktemp("devices"), WAYS[request.param])
    yield made
    made.close()


def _squares(sender: str = DEVICE1, receiver: str = DEVICE0) -> Any:
    """Of 1, 2, ...: sent from one device to the other."""
    with tf.device(sender):
        stored = v1.get_variable("v", initializer=np.ones(ELEMENTS, "f")).read_value()
        sent = [stored + tf.constant(float(number)) for number in range(TENSORS)]
    with tf.device(receiver):
        return [each * each for each in sent]


def _check(opened: Any) -> None:
    _compare(opened.run(opened.built))


def _compare(results: list[Any]) -> None:
    for number, result in enumerate(results, start=1):
        np.testing.assert_array_equal(result, np.full(ELEMENTS, number * number, "f"))


def _holdings(cluster: Cluster, opened: Any) -> dict[str, int]:
    """What both tasks hold after steps that went well, the last of them by the plan if there is one."""
    if cluster.plans:
        warm_up(cluster, lambda: _check(opened))
    held: dict[str, int] = {}
    for number, task in enumerate(cluster.tasks):
        held |= {f"{name} of {number}": count for name, count in task.ask("usage").items()}
        held[f"device's memory of {number}"] = task.ask("device")["used"]
        held[f"places of {number}"] = cluster.stats(number)["plan"]["place_bytes"]
    return held


def _is_as_before(cluster: Cluster, opened: Any, before: dict[str, int]) -> None:
    """One more thread or descriptor now and then is not from a failure, nor one more region of BFC's."""
    slack = {f"{name} of {n}": 8 for name in ("threads", "descriptors", "mappings") for n in (0, 1)}
    slack |= {f"device's memory of {n}": 8 << 20 for n in (0, 1)}
    assert grown(lambda: _holdings(cluster, opened), before, slack) == {}


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("task", "what"), [(1, "fail_to_host"), (0, "fail_to_device")])
def test_copy_that_fails(cluster: Cluster, task: int, what: str) -> None:
    """The device's error is the step's; the next step works."""

    def failures(count: int) -> None:
        for number in range(count):
            cluster.tasks[task].ask(f"device {what}={1 + number % TENSORS}")
            with pytest.raises(tf.errors.InternalError, match="the test's device does not copy"):
                opened.run(opened.built)
            cluster.tasks[task].ask(f"device {what}=0")
            _check(opened)

    with session(cluster, _squares) as opened:
        # While tasks connect, what fails on one way may come on the other, but not wrong.
        cluster.tasks[task].ask(f"device {what}=1")
        try:
            _check(opened)
        except tf.errors.InternalError as error:
            assert "the test's device does not copy" in str(error)
        cluster.tasks[task].ask(f"device {what}=0")
        _check(opened)
        failures(20)
        before = _holdings(cluster, opened)
        failures(REPEATED)
        _is_as_before(cluster, opened, before)


class _Step:
    """A step in a thread of its own."""

    def __init__(self, opened: Any, **options: Any) -> None:
        self.ended: list[Any] = []
        self._opened, self._options = opened, options
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            options = v1.RunOptions(**self._options)
            self.ended.append(self._opened.raw.run(self._opened.built, options=options))
        except tf.errors.OpError as error:
            self.ended.append(error)

    def end(self) -> Any:
        """Its results or its error."""
        self._thread.join(STEP_S)
        assert self.ended, "the step hangs"
        return self.ended[0]


@contextmanager
def _held(cluster: Cluster, task: int, what: str, copies: int = 1) -> Iterator[Callable[[], None]]:
    """Copies of a task's device wait. Yields a function that waits until one does."""
    ask = cluster.tasks[task].ask
    ask(f"device {what}=1")
    try:
        yield lambda: until("nothing is copied", lambda: ask("device")["waiting"] >= copies)
    finally:
        with suppress(ValueError):  # it was killed
            ask(f"device {what}=0")


HELD = pytest.mark.parametrize(
    ("task", "what"),
    [(1, "hold_to_host"), (0, "hold_to_device")],
    ids=["sender", "receiver"],
)


@HELD
def test_step_that_is_cancelled(cluster: Cluster, task: int, what: str) -> None:
    """The client does not wait for the device."""

    def cancellations(count: int) -> None:
        for _ in range(count):
            with _held(cluster, task, what) as is_copying:
                step = _Step(opened, timeout_in_ms=300)
                is_copying()
                assert isinstance(step.end(), tf.errors.DeadlineExceededError)
            _check(opened)

    with session(cluster, _squares) as opened:
        _check(opened)
        cancellations(3)
        before = _holdings(cluster, opened)
        cancellations(20)  # each has 1 MB
        _is_as_before(cluster, opened, before)


@HELD
def test_session_that_is_closed(cluster: Cluster, task: int, what: str) -> None:
    """The master is in task 0. It waits for the devices of its task, but for no others."""
    for _ in range(3):
        opened = Session(cluster, _squares)
        with ExitStack() as held:
            is_copying = held.enter_context(_held(cluster, task, what))
            step = _Step(opened)
            is_copying()
            closing = threading.Thread(target=opened.raw.close, daemon=True)
            closing.start()
            if task == 0:
                held.close()
            closing.join(STEP_S)
            assert not closing.is_alive(), "the session does not close"
        outcome = step.end()
        if task == 0 and isinstance(outcome, list):  # the copies were faster
            _compare(outcome)
        else:
            assert isinstance(outcome, tf.errors.CancelledError | tf.errors.AbortedError)
        with session(cluster, _squares) as again:
            _check(again)


@pytest.mark.parametrize("what", ["hold_to_host", "hold_to_device"])
@pytest.mark.parametrize(
    ("sender", "receiver"), [(DEVICE1, DEVICE0), (DEVICE0, DEVICE1)], ids=["sender", "receiver"]
)
def test_task_that_is_killed(
    device_library: Path, tmp_path: Path, sender: str, receiver: str, what: str
) -> None:
    """Task 1, while a copy of its device or of the other's is under way."""
    copying = sender if what == "hold_to_host" else receiver
    cluster = two_devices(device_library, tmp_path, {})
    try:
        opened = Session(cluster, lambda: _squares(sender, receiver))
        _check(opened)
        with _held(cluster, int(copying == DEVICE1), what) as is_copying:
            step = _Step(opened)
            is_copying()
            cluster.tasks[1].kill()
        outcome = step.end()
        # If the dead task had sent all, nothing is missing.
        if (sender, copying) == (DEVICE1, DEVICE0) and isinstance(outcome, list):
            _compare(outcome)
        else:
            assert isinstance(outcome, tf.errors.UnavailableError | tf.errors.AbortedError)
        abandon(opened.raw)
        cluster.restart(1)
        with session(cluster, lambda: _squares(sender, receiver)) as again:
            _check(again)
            warm_up(cluster, lambda: _check(again))
    finally:
        cluster.close()


@HELD
def test_fork(cluster: Cluster, task: int, what: str) -> None:
    """Copies go on in the process that forked, with its own memory."""
    with session(cluster, _squares) as opened:
        _check(opened)
        with _held(cluster, task, what) as is_copying:
            step = _Step(opened)
            is_copying()
            assert cluster.tasks[task].ask("fork") == 0
        _compare(step.end())


@pytest.mark.parametrize("cluster", ["planned"], indirect=True)
def test_no_memory_of_the_device(cluster: Cluster) -> None:
    """TensorFlow's allocator waits for others to give some back before it says that there is none."""

    def build() -> Any:
        with tf.device(CPU1):
            value = v1.placeholder(tf.float32, [])
            size = v1.placeholder(tf.int32, [])
            sent = tf.fill([size], value)
        with tf.device(DEVICE0):
            return value, size, sent * sent

    with session(cluster, build) as opened:
        value, size, square = opened.built
        small, large = ({value: 3.0, size: elements} for elements in (1000, 20 << 20))
        assert set(opened.run(square, small)) == {9.0}
        cluster.tasks[0].ask("device fail_allocation=1000000")
        with pytest.raises(tf.errors.ResourceExhaustedError, match="no memory for a received"):
            opened.run(square, large)
        cluster.tasks[0].ask("device fail_allocation=0")
        for fed in (small, large):
            assert set(opened.run(square, fed)) == {9.0}
