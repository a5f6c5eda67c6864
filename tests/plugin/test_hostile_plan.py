# SPDX-License-Identifier: Apache-2.0
"""A receiver that lies about planned tensors: its channel is closed, or its offer is not used."""

from __future__ import annotations

import struct
import time
from contextlib import suppress

import pytest

import rdmatensor
from plugin.hostile import (
    ACCEPT,
    OFFER,
    PLANNED,
    WITHDRAW,
    WITHDRAWN,
    Messages,
    device_address,
    expect_a_correct_step,
    ready,
)
from support.clusters import Cluster
from support.graphs import Session
from support.waits import until

READ_WRITE = rdmatensor.Access.READ | rdmatensor.Access.WRITE
Ring = tuple[int, int, int]  # offset, stride, slots
Edge = tuple[bytes, int, int, int, int, int, int]  # name, hash, shape?, ring, group, offset, bytes
EDGE: Edge = (b"edge:0", 1, 0, 0, -1, 0, 64)


def _offer(
    rings: list[Ring], edges: list[Edge], key: int = 77, size: int = 1024, graph: int = 5
) -> bytes:
    text = struct.pack("=qQQII", graph, key, size, len(rings), len(edges))
    text += b"".join(struct.pack("=QQI", *ring) for ring in rings)
    for name, *numbers in edges:
        text += struct.pack("=I", len(name)) + name + struct.pack("=QBiiQQ", *numbers)
    return text


def _pieces(text: bytes, number: int = 0, total: int | None = None) -> Messages:
    """The messages that bring an offer."""
    total = len(text) if total is None else total
    size = 2000
    return [
        (OFFER | number << 8, struct.pack("=Q", total) + text[at : at + size])
        for at in range(0, max(1, len(text)), size)
    ]


SOUND = _offer([(0, 512, 2)], [EDGE])
BROKEN: dict[str, Messages] = {
    "offer_without_a_size": [(OFFER, b"\1\2\3")],
    "offer_of_nothing": _pieces(b""),
    "offer_cut_off": _pieces(SOUND[:-1]),
    "offer_longer_than_it_says": _pieces(SOUND, total=len(SOUND) - 1),
    "offer_of_256_gb": _pieces(SOUND, total=1 << 38),
    "offer_with_an_impossible_number": _pieces(SOUND, number=1 << 40),
    "offer_beyond_its_region": _pieces(_offer([(0, 512, 3)], [EDGE])),
    "offer_that_wraps_around": _pieces(_offer([(0, (1 << 63) + 1, 2)], [EDGE])),
    "offer_of_an_unknown_ring": _pieces(_offer([], [EDGE])),
    "offer_of_an_impossible_group": _pieces(_offer([(0, 512, 2)], [(b"e:0", 1, 0, 0, 9, 0, 8)])),
    "offer_of_many_rings_in_short": _pieces(struct.pack("=qQQII", 5, 77, 1024, 1 << 31, 0)),
    # Many, because the server forgets an offer once it has found that its region is not there.
    "offer_twice": _pieces(SOUND) * 100,
    "withdrawal_of_nothing": [(WITHDRAW | 3 << 8, b"")],
    "accept_from_a_receiver": [(ACCEPT, struct.pack("=Q", 77))],
    "tensor_from_a_receiver": [(PLANNED, struct.pack("=qIBB", 1, 0, 16, 0))],
    "withdrawn_by_a_receiver": [(WITHDRAWN, b"")],
}


@pytest.mark.parametrize("case", BROKEN)
def test_channel_is_closed_and_the_server_goes_on(
    cluster: Cluster, steps: Session, case: str
) -> None:
    expect_a_correct_step(steps, 3.0)
    before = len(cluster.warnings(0))
    address = device_address(cluster.tasks[0].ask("pid"))
    with rdmatensor.Device("hostile") as device, device.connect(address, timeout=10) as server:
        for immediate, payload in [ready(), *BROKEN[case]]:
            # The first of several may have been enough.
            with suppress(rdmatensor.ConnectionFailure):
                server.notify(payload, immediate)
        until("the server takes anything", lambda: not server.up)
        expect_a_correct_step(steps, 5.0)
    said = [line for line in cluster.warnings(0)[before:] if "cannot be used" not in line]
    assert len(said) == 1, said
    assert "hostile" in said[0]
    assert "malformed" in said[0]
    expect_a_correct_step(steps, 7.0)


# Well-formed, but for what they name: a region of 1024 bytes, if it can be written.
UNUSABLE: dict[str, tuple[list[Ring], list[Edge], int, rdmatensor.Access]] = {
    "region_too_small": ([(0, 512, 2)], [EDGE], 2048, READ_WRITE),
    "region_not_writable": ([(0, 512, 2)], [EDGE], 1024, rdmatensor.Access.READ),
    "too_large_a_group": (
        [(0, 512, 2)],
        [(b"e%d:0" % i, i, 0, 0, 0, 0, 4) for i in range(65)],
        1024,
        READ_WRITE,
    ),
    "group_without_members": (
        [(0, 512, 2)],
        [EDGE, (b"other:0", 1, 0, 0, 1, 0, 4)],
        1024,
        READ_WRITE,
    ),
}


@pytest.mark.parametrize("case", UNUSABLE)
def test_offer_is_not_used(cluster: Cluster, steps: Session, case: str) -> None:
    rings, edges, size, access = UNUSABLE[case]
    expect_a_correct_step(steps, 3.0)
    before = len(cluster.warnings(0))
    address = device_address(cluster.tasks[0].ask("pid"))
    with (
        rdmatensor.Device(f"hostile_{case}") as device,
        device.connect(address, timeout=10) as server,
    ):
        region = device.allocate(1024, "u1", access=access)
        offer = _offer(rings, edges, key=region.key, size=size)
        for immediate, payload in [ready(), *_pieces(offer, number=1)]:
            server.notify(payload, immediate)
        answer = device.next_notification(10)
        assert answer.immediate == WITHDRAWN | 1 << 8
        assert server.up
        expect_a_correct_step(steps, 5.0)
    (said,) = cluster.warnings(0)[before:]
    assert "hostile" in said
    assert "cannot be used" in said


def test_offer_for_a_graph_that_nobody_runs(cluster: Cluster, steps: Session) -> None:
    """It is accepted, because the graph may come, and withdrawn."""
    before = len(cluster.warnings(0))
    address = device_address(cluster.tasks[0].ask("pid"))
    with rdmatensor.Device("guest") as device, device.connect(address, timeout=10) as server:
        region = device.allocate(1024, "u1")
        offer = _offer([(0, 512, 2)], [EDGE], key=region.key)
        for immediate, payload in [ready(), *_pieces(offer)]:
            server.notify(payload, immediate)
        assert device.next_notification(10).immediate == ACCEPT
        server.notify(b"", WITHDRAW)
        assert device.next_notification(10).immediate == WITHDRAWN
        assert server.up
        expect_a_correct_step(steps, 5.0)
    assert cluster.warnings(0)[before:] == []


def test_offers_of_a_peer_are_limited_together(cluster: Cluster, steps: Session) -> None:
    """Each is within its limit: the sender would hold memory for the places of all."""
    before = len(cluster.warnings(0))
    address = device_address(cluster.tasks[0].ask("pid"))
    with rdmatensor.Device("hostile") as device, device.connect(address, timeout=10) as server:
        region = device.allocate(1024, "u1")
        offer = _offer([(0, 4, 256)] * 4200, [(b"edge:0", 1, 0, 0, -1, 0, 4)], key=region.key)

        def answer_to(number: int) -> int:
            for immediate, payload in _pieces(offer, number):
                server.notify(payload, immediate)
            return device.next_notification(10).immediate

        immediate, payload = ready()
        server.notify(payload, immediate)
        assert answer_to(0) == ACCEPT
        assert answer_to(1) == WITHDRAWN | 1 << 8
        assert server.up
        expect_a_correct_step(steps, 5.0)
        server.notify(b"", WITHDRAW)
        assert device.next_notification(10).immediate == WITHDRAWN
        end, number = time.monotonic() + 10, 2
        while answer_to(number) != ACCEPT | number << 8:
            assert time.monotonic() < end, "what was withdrawn still counts"
            number += 1
    said = cluster.warnings(0)[before:]
    assert said
    assert all("hostile" in line and "2097152 places" in line for line in said)
