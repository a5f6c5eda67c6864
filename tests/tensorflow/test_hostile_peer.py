# SPDX-License-Identifier: Apache-2.0
"""A peer that breaks the protocol: its channel is closed, with one warning, and nobody else notices."""

from __future__ import annotations

import random
import struct
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import rdmatensor
from clusters import Cluster
from graphs import TASK0, TASK1, Session, cross, session, v1

TENSOR, REFERRAL, READY, RELEASE, ABORT = range(1, 6)
VERSION = 2
SELF = b"/job:hostile/replica:0/task:0"
KEY = b"/job:hostile/replica:0/task:0/device:CPU:0;0000000000000001;/job:worker/x;edge;0:0"
Messages = list[tuple[int, bytes]]


def _ready(task: bytes = SELF, version: int = VERSION) -> tuple[int, bytes]:
    return READY, struct.pack("=I", version) + task


def _tensor(flags: int, size: int, rest: bytes = b"", key_size: int = len(KEY)) -> bytes:
    """One float vector with a claim about its size."""
    return struct.pack("=qiBBIQq", 1, 1, flags, 1, key_size, size, size // 4) + KEY + rest


def _garbage(seed: int) -> Messages:
    numbers = random.Random(seed)
    return [(numbers.getrandbits(64), numbers.randbytes(numbers.randrange(3000)))] * 3


CASES: dict[str, Messages] = {
    "no_such_kind": [(0, b""), (6, b"x" * 100), (255, b"")],
    "garbage": _garbage(1),
    "ready_too_short": [(READY, b"\1\0\0")],
    "ready_of_another_version": [_ready(version=1)],
    "ready_of_no_task": [_ready(b"")],
    "ready_of_a_device": [_ready(SELF + b"/device:CPU:0")],
    "ready_of_a_huge_task": [_ready(b"/job:" + b"a" * 1_000_000 + b"/replica:0/task:0")],
    "ready_twice": [_ready(), _ready()],
    "release_of_nothing": [(RELEASE, b"")],
    "release_of_unknown_loans": [_ready(), *[(RELEASE | n << 8, b"") for n in (1, 1 << 55)]],
    "tensor_from_no_source": [(TENSOR, _tensor(2, 8, b"12345678"))],
    "tensor_from_a_receiver": [_ready(), (TENSOR, _tensor(2, 8, b"12345678"))],
    "tensor_elsewhere": [(TENSOR, _tensor(0, 1 << 40, struct.pack("=QQQ", 7, 1 << 63, 1)))],
    "tensor_with_a_huge_key": [(TENSOR, _tensor(2, 8, b"12345678", key_size=0xFFFFFFFF))],
    "referral_from_no_source": [(REFERRAL, struct.pack("=qiB", 1, 0, 0) + KEY)],
    "abort_from_no_source": [(ABORT, struct.pack("=qiB", 1, 14, 0) + b"text")],
    "flood": [(9, b"z" * 1000)] * 50,
}


def _device_address(pid: int) -> str:
    """Where the device of a server listens: TensorFlow's own port is on IPv6 too."""
    inodes = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):
            inodes.add(str(descriptor.readlink()))
    found = []
    for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
            found.append(f"127.0.0.1:{int(fields[1].split(':')[1], 16)}")
    (address,) = found
    return address


def _warnings(cluster: Cluster) -> list[str]:
    return [line for line in cluster.log(0).splitlines() if "rdmatensor: WARN" in line]


@pytest.fixture(scope="module")
def steps(shared_cluster: Cluster) -> Iterator[Session]:
    """A session with one step that sends small and large tensors both ways."""

    def build() -> Any:
        with tf.device(TASK0):
            value = v1.placeholder(tf.float32, [])
            large = tf.fill([100_000], value)
        with tf.device(TASK1):
            both = tf.reduce_sum(large), large + value
        return value, [cross(each) for each in both]

    with session(shared_cluster, build) as opened:
        yield opened


def _expect_a_correct_step(opened: Session, number: float) -> None:
    value, results = opened.built
    total, doubled = opened.run(results, {value: number})
    assert total == 100_000 * number
    np.testing.assert_array_equal(doubled, np.full(100_000, 2 * number, "f"))


@pytest.mark.parametrize("case", CASES)
def test_channel_is_closed_and_the_server_goes_on(
    cluster: Cluster, steps: Session, case: str
) -> None:
    _expect_a_correct_step(steps, 3.0)
    before = len(_warnings(cluster))
    address = _device_address(cluster.tasks[0].ask("pid"))
    with rdmatensor.Device("hostile") as device, device.connect(address, timeout=10) as server:
        for immediate, payload in CASES[case]:
            # The first of several may have been enough.
            with suppress(rdmatensor.ConnectionFailure):
                server.notify(payload, immediate)
        end = time.monotonic() + 10
        while server.up:
            assert time.monotonic() < end, "the server takes anything"
            time.sleep(0.01)
        _expect_a_correct_step(steps, 5.0)
    said = _warnings(cluster)[before:]
    assert len(said) == 1, said
    assert "hostile" in said[0]
    assert "malformed" in said[0]
    _expect_a_correct_step(steps, 7.0)
    assert cluster.stats(1)["paths"]["rpc"]["sent_tensors"] == 0
