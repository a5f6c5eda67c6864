# SPDX-License-Identifier: Apache-2.0
"""Operations on stores: values, versions, what does not fit, and waits that end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import rdmatensor
import rdmatensor.train as rt
from rdmatensor.errors import UsageError
from support.peers import LocalNursery, Peer
from support.waits import AT_ONCE, PATIENCE, stays, until

pytestmark = pytest.mark.timeout(300)
LIKE = [tf.TensorSpec([3], tf.float32), tf.TensorSpec([], tf.int64), tf.TensorSpec([2, 2], tf.bool)]
NBYTES = rt.store_nbytes(LIKE)
DEADLINES = ("CONNECT_TIMEOUT_MS", "DEADLINE_MS")


def _tensors(number: int) -> list[Any]:
    return [
        tf.constant([1.0, 2.0, 3.0]) * number,
        tf.constant(number, tf.int64),
        tf.constant([[True, False], [number % 2 == 0, True]]),
    ]


def _same(tensors: list[Any], number: int) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(tensors, _tensors(number), strict=True))


@pytest.fixture(scope="module")
def nursery() -> Iterator[LocalNursery]:
    nursery = LocalNursery()
    yield nursery
    nursery.close()


@pytest.fixture(params=["shm", "tcp"])
def device(request: Any, setting: Callable[[str, Any], None]) -> Iterator[rdmatensor.Device]:
    setting("TRANSPORTS", request.param)
    for name in DEADLINES:
        setting(name, 100_000)
    with rdmatensor.Device() as device:
        yield device


@pytest.fixture
def store(device: rdmatensor.Device) -> Iterator[rdmatensor.Store]:
    with rdmatensor.Store(device, 0, 3, NBYTES, NBYTES, "parameters") as store:
        yield store


@pytest.fixture
def member(
    nursery: LocalNursery, device: rdmatensor.Device, store: rdmatensor.Store
) -> Iterator[Peer]:
    """Rank 1 in another process, which has no TensorFlow."""
    variables = {f"RDMATENSOR_{name}": "100000" for name in DEADLINES}
    transports = str(rdmatensor.config.get("TRANSPORTS"))
    peer = nursery.spawn({"RDMATENSOR_TRANSPORTS": transports, **variables}, device="")
    peer.run(
        "store = rdmatensor.Store(device, 1, 3, n, n, 'parameters'); bytes_ = bytearray(n)",
        n=NBYTES,
    )
    peer.run("store.connect(0, address, 60)", address=device.address)
    store.connect(1, peer.address, 60)
    until("it is not present", lambda: store.member(1).present)
    yield peer
    peer.close()


def _call(function: Callable[[], Any]) -> tuple[threading.Thread, list[BaseException]]:
    """Runs a function on another thread, which is to fail."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            function()
        except tf.errors.OpError as error:
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, raised


def _ends(thread: threading.Thread) -> None:
    thread.join(PATIENCE)
    assert not thread.is_alive()


def test_tensors_go_through_another_process(member: Peer, store: rdmatensor.Store) -> None:
    """The other process publishes and pushes the bytes that it has read. They come back as tensors."""

    @tf.function
    def publish(number: Any) -> Any:
        tensors = [tf.constant([1.0, 2.0, 3.0]) * tf.cast(number, tf.float32), number]
        tensors.append(tf.stack([[True, False], [number % 2 == 0, True]]))
        return rt.store_publish(store, tensors, number + 10)

    @tf.function
    def pull(rank: Any) -> Any:
        pulled = rt.store_pull(store, rank, LIKE)
        assert [each.shape for each in pulled.tensors] == [each.shape for each in LIKE]
        return pulled

    for number in (1, 2):
        assert publish(tf.constant(number, tf.int64)) == number
        member.run("found = store.pull(0, bytes_); store.publish(bytes_, found.mark + 1)")
        assert member.get("(found.version, found.mark)") == (number, number + 10)
        for pulled in (pull(tf.constant(1)), rt.store_pull(store, 1, LIKE)):
            assert (pulled.version, pulled.mark) == (number, number + 11)
            assert _same(pulled.tensors, number)


def test_pushes_wait_in_slots(member: Peer, store: rdmatensor.Store) -> None:
    nothing = rt.store_take(store, _tensors(5))
    assert (bool(nothing.arrived), int(nothing.rank)) == (False, -1)
    assert _same(nothing.tensors, 5)
    assert rt.store_push(store, 1, _tensors(6), 2**62)
    assert not rt.store_push(store, 1, _tensors(7))  # it has not taken the first one
    member.run("found = store.take(60); again = store.push(0, found.data, found.mark)")
    assert member.get("(again, found.rank, found.mark)") == (True, 0, 2**62)

    @tf.function
    def take() -> Any:
        return rt.store_take(store, _tensors(5))

    found: Any = None

    def arrives() -> bool:
        nonlocal found
        found = take()
        return bool(found.arrived)

    until("nothing arrives", arrives)
    assert (int(found.rank), int(found.mark)) == (1, 2**62)
    assert _same(found.tensors, 6)
    assert member.get("store.push(0, bytes(8), 0)")  # the slot is free

    def refused() -> bool:
        try:
            return bool(rt.store_take(store, _tensors(5)).arrived)
        except tf.errors.InvalidArgumentError as error:
            assert "rank 1 sent has 8" in str(error)
            return True

    until("nothing arrives", refused)
    assert member.get("store.push(0, bytes(8), 0)")


def test_versions_are_whole_while_they_are_overwritten(
    member: Peer, store: rdmatensor.Store
) -> None:
    """A version has one number in all of its bytes."""
    member.start(
        """
        number, end = 0, time.monotonic() + 60
        while time.monotonic() < end and store.take() is None:
            number = number % 100 + 1
            store.publish(bytes([number]) * n, number)
        """,
        n=NBYTES,
    )
    like = [tf.TensorSpec([NBYTES // 2], tf.uint8), tf.TensorSpec([1], tf.uint8)]
    pad = NBYTES - rt.store_nbytes(like)
    like[1] = tf.TensorSpec([1 + pad], tf.uint8)
    assert rt.store_nbytes(like) == NBYTES
    versions: set[int] = set()
    try:
        while len(versions) < 200:
            pulled = rt.store_pull(store, 1, like, PATIENCE)
            versions.add(int(pulled.version))
            for each in pulled.tensors:
                assert np.all(each.numpy() == int(pulled.mark))
    finally:
        rt.store_push(store, 1, [tf.zeros([1])])
        member.finish()


def test_errors_name_the_cause(member: Peer, store: rdmatensor.Store) -> None:
    for action in (
        lambda: rt.store_publish(store, [tf.zeros([100])]),
        lambda: rt.store_pull(store, 1, [tf.TensorSpec([100])]),
        lambda: rt.store_push(store, 1, [tf.zeros([100])]),
    ):
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"400 bytes.*store_nbytes"):
            action()
    for rank in (-1, 0, 3):
        with pytest.raises(tf.errors.InvalidArgumentError, match="rank"):
            rt.store_pull(store, rank, LIKE)
    with pytest.raises(tf.errors.AbortedError, match="rank 2"):  # nobody is connected to it
        rt.store_pull(store, 2, LIKE)
    with pytest.raises(tf.errors.DeadlineExceededError, match=r"rank 1.*published nothing"):
        rt.store_pull(store, 1, LIKE, 0.0)
    with pytest.raises(UsageError, match="known"):
        rt.store_pull(store, 1, [tf.TensorSpec([None])])
    with pytest.raises(UsageError, match="list"):
        rt.store_publish(store, tf.zeros([4]))
    compiled = tf.function(
        lambda: rt.store_publish(store, _tensors(1)), jit_compile=True, autograph=False
    )
    with pytest.raises(UsageError, match="XLA"):
        compiled()


def test_a_member_that_dies_ends_a_pull(member: Peer, store: rdmatensor.Store) -> None:
    thread, raised = _call(lambda: rt.store_pull(store, 1, LIKE))  # it has published nothing
    member.kill()
    _ends(thread)
    assert isinstance(raised[0], tf.errors.AbortedError)
    assert "rank 1" in str(raised[0])
    with pytest.raises(tf.errors.AbortedError, match="rank 1"):
        rt.store_push(store, 1, _tensors(1))


def test_a_cancelled_pull_ends(member: Peer, store: rdmatensor.Store) -> None:
    from tensorflow.python.eager import cancellation

    manager = cancellation.CancellationManager()
    pull = tf.function(lambda: rt.store_pull(store, 1, LIKE).tensors).get_concrete_function()
    thread, raised = _call(manager.get_cancelable_function(pull))
    assert stays(thread.is_alive)
    manager.start_cancel()
    _ends(thread)
    assert isinstance(raised[0], tf.errors.CancelledError)
    rt.store_publish(store, _tensors(1))  # the store goes on
    store.close()  # although the pull that was given up still waits


def test_a_store_closes_under_its_operations(member: Peer, store: rdmatensor.Store) -> None:
    rt.store_publish(store, _tensors(1))
    pull = tf.function(lambda: rt.store_pull(store, 1, LIKE).tensors)
    pull.get_concrete_function()
    calls = [_call(pull) for _ in range(4)]
    assert stays(lambda: all(thread.is_alive() for thread, _ in calls))
    store.close()
    for thread, raised in calls:
        _ends(thread)
        assert isinstance(raised[0], (tf.errors.CancelledError, tf.errors.FailedPreconditionError))
    for action in (
        lambda: rt.store_publish(store, _tensors(1)),
        lambda: rt.store_push(store, 1, _tensors(1)),
        lambda: rt.store_take(store, _tensors(1)),
        pull,
    ):
        with pytest.raises(tf.errors.FailedPreconditionError, match='"parameters" is closed'):
            action()


def test_stores_of_one_process_wait_for_each_other(store: rdmatensor.Store) -> None:
    """A pull that waits does not keep what it waits for from being published."""
    with (
        rdmatensor.Device("other") as device,
        rdmatensor.Store(device, 1, 3, NBYTES, NBYTES, "parameters") as other,
    ):
        store.connect(1, device.address, 60)

        @tf.function
        def both() -> Any:
            pulls = [rt.store_pull(store, 1, LIKE, AT_ONCE).tensors]
            version = rt.store_publish(other, _tensors(3))
            return version, pulls

        version, pulls = both()
        assert version == 1
        assert all(_same(each, 3) for each in pulls)
