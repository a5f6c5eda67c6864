# SPDX-License-Identifier: Apache-2.0
"""What a peer needs to talk to a server's device, and to see that the server goes on."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import rdmatensor
from support.clusters import Cluster
from support.graphs import TASK0, TASK1, Session, cross, session, v1

# Kinds of messages.
TENSOR, USE_RPC, READY, RELEASE, ABORT, OFFER, ACCEPT, PLANNED, WITHDRAW, WITHDRAWN = range(1, 11)
RPC_PENDING, RPC_DONE, LOST = 11, 12, 13
WILL_ASK, ASK, CONTESTED, SOURCE = range(14, 18)
CALLER, CALL, ANSWER, MORE, CANCEL = range(18, 23)
VERSION = 9
SELF = b"/job:hostile/replica:0/task:0"
Messages = list[tuple[int, bytes]]


def ready(task: bytes = SELF, version: int = VERSION, session: bytes = b"") -> tuple[int, bytes]:
    """A receiver's name in a session."""
    return READY, struct.pack("=II", version, len(session)) + session + task


def source(sender: bytes = SELF, version: int = VERSION) -> tuple[int, bytes]:
    """A sender that opened the channel itself introduces itself so."""
    names = (b"", b"/job:worker/replica:0/task:0", sender)
    named = b"".join(struct.pack("=I", len(name)) + name for name in names)
    return SOURCE, named + struct.pack("=IIIIIQ", version, 0, 0, 1, 0, 1)


def caller(task: bytes = SELF, version: int = VERSION) -> tuple[int, bytes]:
    """A caller introduces itself so."""
    return CALLER, ready(task, version)[1]


def call(
    number: int, content: bytes, total: int | None = None, kind: int = CALL
) -> tuple[int, bytes]:
    """The first piece of a call, or of an answer."""
    length = len(content) if total is None else total
    return kind | number << 8, struct.pack("=QI", length, rdmatensor.crc32c(content)) + content


def device_address(pid: int) -> str:
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


def expect_a_correct_step(opened: Session, number: float) -> None:
    """`opened` is what `steps` gives."""
    value, results = opened.built
    total, doubled = opened.run(results, {value: number})
    assert total == 100_000 * number
    np.testing.assert_array_equal(doubled, np.full(100_000, 2 * number, "f"))


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
