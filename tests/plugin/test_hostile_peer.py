# SPDX-License-Identifier: Apache-2.0
"""A peer that breaks the protocol: its channel is closed, with one warning, and nobody else notices."""

from __future__ import annotations

import random
import struct
from contextlib import suppress

import pytest

import rdmatensor
from plugin.hostile import (
    ABORT,
    ANSWER,
    CALL,
    CANCEL,
    CONTESTED,
    LOST,
    MORE,
    READY,
    RELEASE,
    RPC_DONE,
    RPC_PENDING,
    SELF,
    SOURCE,
    TENSOR,
    USE_RPC,
    WILL_ASK,
    Messages,
    call,
    caller,
    device_address,
    expect_a_correct_step,
    ready,
    source,
)
from support.clusters import Cluster
from support.graphs import Session
from support.waits import until

KEY = b"/job:hostile/replica:0/task:0/device:CPU:0;0000000000000001;/job:worker/x;edge;0:0"


def _tensor(flags: int, size: int, rest: bytes = b"", key_size: int = len(KEY)) -> bytes:
    """One float vector with a claim about its size."""
    return struct.pack("=qiBBIQq", 1, 1, flags, 1, key_size, size, size // 4) + KEY + rest


def _garbage(seed: int) -> Messages:
    numbers = random.Random(seed)
    return [(numbers.getrandbits(64), numbers.randbytes(numbers.randrange(3000)))] * 3


# A call of the first method, without tensors and message.
EMPTY = struct.pack("=BI", 1, 0)


def _with(tensor: bytes) -> bytes:
    """The same with one tensor."""
    return struct.pack("=BIQ", 1, 1, len(tensor)) + tensor


CASES: dict[str, Messages] = {
    "no_such_kind": [(0, b""), (99, b"x" * 100), (255, b"")],
    "garbage": _garbage(1),
    "ready_too_short": [(READY, b"\1\0\0")],
    "ready_of_another_version": [ready(version=1)],
    "ready_of_no_task": [ready(b"")],
    "ready_of_a_device": [ready(SELF + b"/device:CPU:0")],
    "ready_of_a_huge_task": [ready(b"/job:" + b"a" * 1_000_000 + b"/replica:0/task:0")],
    "ready_in_a_huge_session": [ready(session=b"s" * 100_000)],
    "ready_under_too_many_names": [
        ready(b"/job:hostile/replica:0/task:%d" % index) for index in range(65)
    ],
    "source_of_nothing": [(SOURCE, b"\1")],
    "source_under_too_many_names": [
        source(b"/job:hostile/replica:0/task:%d" % index) for index in range(65)
    ],
    "source_that_receives": [ready(), source()],
    "source_of_another_version": [source(version=1)],
    "source_of_no_task": [source(sender=b"")],
    "contested_from_no_source": [(CONTESTED, ready()[1])],
    "will_ask_when_ready": [ready(), (WILL_ASK, b"")],
    "release_of_nothing": [(RELEASE, b"")],
    "release_of_unknown_loans": [ready(), *[(RELEASE | n << 8, b"") for n in (1, 1 << 55)]],
    "tensor_from_no_source": [(TENSOR, _tensor(2, 8, b"12345678"))],
    "tensor_from_a_receiver": [ready(), (TENSOR, _tensor(2, 8, b"12345678"))],
    "tensor_elsewhere": [(TENSOR, _tensor(0, 1 << 40, struct.pack("=QQQ", 7, 1 << 63, 1)))],
    "tensor_with_a_huge_key": [(TENSOR, _tensor(2, 8, b"12345678", key_size=0xFFFFFFFF))],
    "referral_from_no_source": [(USE_RPC, struct.pack("=qiB", 1, 0, 0) + KEY)],
    "abort_from_no_source": [(ABORT, struct.pack("=qiB", 1, 14, 0) + b"text")],
    "asked_without_a_step": [(RPC_PENDING, b"\1\2\3")],
    "asked_for_too_much": [(RPC_PENDING, struct.pack("=qiB", 1, 0, 0) + b"k" * 60_000)] * 300,
    "answered_before_ready": [(RPC_DONE, struct.pack("=qiB", 1, 0, 0) + KEY)],
    "answered_without_a_step": [ready(), (RPC_DONE, b"")],
    "lost_from_no_source": [(LOST, struct.pack("=qiB", 1, 0, 0) + KEY)],
    "caller_of_another_version": [caller(version=1)],
    "caller_of_no_task": [caller(b"")],
    "caller_twice": [caller(), caller()],
    "caller_that_receives": [ready(), caller()],
    "caller_that_sends": [source(), caller()],
    "call_before_caller": [call(1, EMPTY)],
    "call_without_length": [caller(), (CALL | 1 << 8, b"123")],
    "call_of_nothing": [caller(), call(1, b"")],
    "call_of_no_method": [caller(), call(1, b"\xff" + EMPTY[1:])],
    "call_of_too_much": [caller(), call(1, b"", 1 << 31)],
    "call_longer_than_said": [caller(), call(1, EMPTY, 2)],
    "call_with_a_tensor_too_many": [caller(), call(1, struct.pack("=BI", 1, 1000))],
    "call_with_half_a_tensor": [caller(), call(1, struct.pack("=BIQ", 1, 1, 1 << 60))],
    "call_with_a_dead_tensor": [
        caller(),
        call(1, _with(struct.pack("=qiBBIQ", 0, 1, 3, 0, 0, 0))),
    ],
    "call_with_a_wrong_checksum": [caller(), (CALL | 1 << 8, call(1, EMPTY)[1][:-1] + b"x")],
    "call_twice": [caller(), call(1, EMPTY), call(1, EMPTY)],
    "call_inside_a_call": [caller(), call(1, EMPTY, 100), call(2, EMPTY)],
    "call_answered_by_the_caller": [caller(), call(1, EMPTY, kind=ANSWER)],
    "more_of_nothing": [caller(), (MORE | 1 << 8, b"x")],
    "more_of_another": [caller(), call(1, EMPTY, 100), (MORE | 2 << 8, b"x")],
    "more_than_said": [caller(), call(1, EMPTY, 8), (MORE | 1 << 8, b"0123456789")],
    "more_without_end": [caller(), call(1, EMPTY, 100), (MORE | 1 << 8, b"")],
    "cancel_of_nothing": [caller(), (CANCEL | 1 << 8, b"")],
    "cancel_with_a_reason": [caller(), call(1, EMPTY), (CANCEL | 1 << 8, b"x")],
    "flood": [(99, b"z" * 1000)] * 50,
}


@pytest.mark.parametrize("case", CASES)
def test_channel_is_closed_and_the_server_goes_on(
    cluster: Cluster, steps: Session, case: str
) -> None:
    expect_a_correct_step(steps, 3.0)
    before = len(cluster.warnings(0))
    address = device_address(cluster.tasks[0].ask("pid"))
    with rdmatensor.Device("hostile") as device, device.connect(address, timeout=10) as server:
        for immediate, payload in CASES[case]:
            # The first of several may have been enough.
            with suppress(rdmatensor.ConnectionFailure):
                server.notify(payload, immediate)
        until("the server takes anything", lambda: not server.up)
        expect_a_correct_step(steps, 5.0)
    said = cluster.warnings(0)[before:]
    assert len(said) == 1, said
    assert "hostile" in said[0]
    assert "malformed" in said[0]
    expect_a_correct_step(steps, 7.0)
    assert cluster.stats(1)["paths"]["rpc"]["sent_tensors"] == 0


def test_tensors_for_unknown_steps_are_limited(cluster: Cluster, steps: Session) -> None:
    before = len(cluster.warnings(0))
    address = device_address(cluster.tasks[0].ask("pid"))
    size = 512 << 10
    with rdmatensor.Device("hostile") as device, device.connect(address, timeout=10) as server:
        immediate, payload = source()
        server.notify(payload, immediate)
        with suppress(rdmatensor.ConnectionFailure):
            for step in range((1 << 30) // size + 100):
                tensor = struct.pack("=qiBBIQq", step, 1, 2, 1, len(KEY), size, size // 4)
                server.notify(tensor + KEY + bytes(size), TENSOR)
        until("the server takes anything", lambda: not server.up)
    (said,) = cluster.warnings(0)[before:]
    assert "nothing here has asked for" in said
    expect_a_correct_step(steps, 3.0)


def test_sender_that_opens_another_channel_is_taken_at_its_word(cluster: Cluster) -> None:
    """A sender does so when it has lost the first channel, which the server may notice later."""
    address = device_address(cluster.tasks[0].ask("pid"))
    immediate, payload = source()
    with (
        rdmatensor.Device("sender") as device,
        device.connect(address, timeout=10) as first,
        device.connect(address, timeout=10) as second,
    ):
        for server in (first, second):
            server.notify(payload, immediate)
            assert device.next_notification(10).immediate == READY
        until("the first channel is still open", lambda: not first.up)
        # This comes late.
        server.notify(payload, immediate)
        assert second.up


def test_names_are_limited(own_cluster: Cluster) -> None:
    """Each connection brings as many made-up names as it may; the server remembers a limited number."""
    limit, each = 4096, 64
    address = device_address(own_cluster.tasks[0].ask("pid"))
    with rdmatensor.Device("hostile") as device:
        for first in range(0, limit + 2 * each, each):
            with device.connect(address, timeout=10) as server:
                for index in range(first, first + each):
                    immediate, payload = ready(b"/job:hostile/replica:0/task:%d" % index)
                    server.notify(payload, immediate)
                # A channel that closes here may drop what the server has not handled yet. The server
                # closes this one itself, at a message that it handles after all names.
                server.notify(b"", 99)
                until("the server has handled all names", lambda: not server.up)
    peers = own_cluster.stats(0)["peers"]
    assert limit <= len(peers) <= limit + 2
    assert "others" in {peer["task"] for peer in peers}
