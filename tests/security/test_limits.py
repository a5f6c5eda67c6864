# SPDX-License-Identifier: Apache-2.0
"""What peers may take of a device, and that others go on when one takes more."""

from __future__ import annotations

import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

import rdmatensor
from security.devices import SECRET, Open, works
from support.bootstrap import Line, Meeting

Setting = Callable[[str, str | int], None]
SILENT = 280  # more than there are handshakes at once


def test_connections_in_all(open_device: Open) -> None:
    ours, theirs = open_device(CONNECTIONS=1), open_device()
    with theirs.allocate(64, name="written"):
        remote = ours.connect(theirs.address)
        with pytest.raises(rdmatensor.ConnectionRefused, match=r"device has 1 .*CONNECTIONS"):
            ours.connect(theirs.address)
        remote.region("written").write(b"1").wait()


def test_connections_of_a_host(open_device: Open) -> None:
    ours, theirs = open_device(CONNECTIONS=4), open_device()
    with theirs.allocate(64, name="written"):
        first, second = ours.connect(theirs.address), ours.connect(theirs.address)
        for _ in range(3):
            with pytest.raises(rdmatensor.ConnectionRefused, match=r"has 2 .*_CONNECTIONS"):
                ours.connect(theirs.address)
        for remote in (first, second):
            remote.region("written").write(b"1").wait()
        second.close()
        end = time.monotonic() + 20
        while True:  # the place is free once both ends are closed
            try:
                third = ours.connect(theirs.address)
                break
            except rdmatensor.ConnectionRefused:
                assert time.monotonic() < end, "a closed connection keeps its place"
        third.region("written").write(b"1").wait()


def test_regions_that_a_peer_allocates(open_device: Open) -> None:
    ours, theirs = open_device(REMOTE_REGIONS=2), open_device()
    remote, other = ours.connect(theirs.address), ours.connect(theirs.address)
    kept = [remote.allocate(4096), remote.allocate(4096)]
    with pytest.raises(rdmatensor.DeviceError, match="2 regions") as caught:
        remote.allocate(4096)
    assert caught.value.status == "LIMIT"
    other.allocate(4096).write(b"1").wait()
    kept[0].write(b"1").wait()


def test_bytes_that_a_peer_allocates(open_device: Open) -> None:
    ours, theirs = open_device(REMOTE_ALLOC_LIMIT=10_000), open_device()
    remote, other = ours.connect(theirs.address), ours.connect(theirs.address)
    kept = remote.allocate(8000)
    with pytest.raises(rdmatensor.DeviceError, match="RDMATENSOR_REMOTE_ALLOC_LIMIT"):
        remote.allocate(8000)
    other.allocate(8000).write(b"1").wait()
    kept.write(b"1").wait()


def test_bytes_that_all_peers_allocate(open_device: Open) -> None:
    """One that connects often gets no more; what it had is free again when it is gone."""
    ours, theirs = open_device(REMOTE_ALLOC_LIMIT=10_000), open_device()
    *others, first, second = (ours.connect(theirs.address) for _ in range(17))
    held = [other.allocate(10_000) for other in others]
    kept = first.allocate(8000)
    with pytest.raises(rdmatensor.DeviceError, match="RDMATENSOR_REMOTE_ALLOC_LIMIT"):
        second.allocate(8000)
    second.allocate(2000)
    assert not any(region.closed for region in [*held, kept])
    first.close()
    end = time.monotonic() + 20
    while True:
        try:
            second.allocate(8000).write(b"1").wait()
            break
        except rdmatensor.DeviceError:
            assert time.monotonic() < end, "what a peer allocated outlives it"


@pytest.mark.parametrize(
    ("name", "limit", "told"),
    [("REMOTE_REGIONS", 2, "2 regions"), ("REMOTE_OPEN_LIMIT", 2 * 4096, "8192 bytes")],
)
def test_regions_of_a_peer_that_we_open(
    open_device: Open, name: str, limit: int, told: str
) -> None:
    ours, theirs = open_device(**{name: limit}), open_device()
    regions = [theirs.allocate(4096, name=f"region {i}") for i in range(3)]
    remote = ours.connect(theirs.address)
    first, second = (remote.region(f"region {i}") for i in range(2))
    with pytest.raises(rdmatensor.DeviceError, match=told) as caught:
        remote.region("region 2")
    assert caught.value.status == "LIMIT"
    first.write(b"1").wait()
    second.close()
    remote.region("region 2").write(b"1").wait()
    assert [region.array[0] for region in regions] == [ord("1"), 0, ord("1")]


def test_silent_connections(open_device: Open) -> None:
    """They hold what there is of handshakes, and whoever speaks still comes in."""
    ours, theirs = open_device(), open_device()
    host, port = theirs.address.rsplit(":", 1)
    silent = [socket.create_connection((host, int(port))) for _ in range(SILENT)]
    with theirs.allocate(64, name="written") as region:
        remote = ours.connect(theirs.address, timeout=4)  # silence is put up with for longer
        remote.region("written").write(b"1").wait()
        assert region.array[0] == ord("1")
    silent[0].settimeout(2)
    assert silent[0].recv(1) == b"", "the first made room"
    silent[-1].setblocking(False)
    with pytest.raises(BlockingIOError):
        silent[-1].recv(1)
    theirs.close()
    for line in silent:
        line.settimeout(20)
        while line.recv(4096):  # until it is hung up on
            pass
        line.close()


def carry(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(4096):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)


@contextmanager
def relay(address: str, busy: int = 0) -> Iterator[str]:
    """Another way to a device; it hangs up on the first `busy` connections."""
    host, _, port = address.rpartition(":")
    lines: list[socket.socket] = []

    def serve() -> None:
        with suppress(OSError):
            for _ in range(busy):
                listener.accept()[0].close()
            while True:
                pair = [listener.accept()[0], socket.create_connection((host, int(port)))]
                lines.extend(pair)
                for way in (pair, pair[::-1]):
                    threading.Thread(target=carry, args=way, daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, daemon=True).start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
    for line in lines:
        line.close()


def test_whoever_finds_no_place_comes_again(open_device: Open) -> None:
    """A busy device hangs up on some. They come again until it answers."""
    ours, theirs = open_device(), open_device()
    with (
        relay(theirs.address, busy=3) as address,
        theirs.allocate(64, name="written") as region,
    ):
        ours.connect(address, timeout=20).region("written").write(b"1").wait()
        assert region.array[0] == ord("1")


@pytest.mark.parametrize("secret", [b"", SECRET])
def test_nobody_is_led_back_to_himself(open_device: Open, secret: bytes) -> None:
    """A relay needs no secret for that. Where a device listens, it may connect to itself."""
    ours = open_device(secret)
    with (
        relay(ours.address) as address,
        pytest.raises(rdmatensor.ConnectionRefused, match="leads back") as caught,
    ):
        ours.connect(address, timeout=20)
    assert caught.value.status == "REFUSED"
    assert works(ours, ours)


def test_a_diverted_connection_meets_another_name(open_device: Open) -> None:
    """Whoever forwards bytes to another device that has the secret cannot change its name."""
    ours, wanted, other = open_device(SECRET), open_device(SECRET), open_device(SECRET)
    with wanted.allocate(8, name="word") as region:
        remote = ours.connect(wanted.address, expect=wanted.name)
        remote.region("word").write(b"12345678").wait()
        assert bytes(region.array) == b"12345678"
    with (
        relay(other.address) as address,
        pytest.raises(rdmatensor.ConnectionRefused, match=re.escape(other.name)) as caught,
    ):
        ours.connect(address, timeout=20, expect="the wanted one")
    assert caught.value.status == "REFUSED" and "the wanted one" in str(caught.value)


def test_a_member_is_not_led_to_another_root(open_device: Open) -> None:
    """Two jobs have one secret and call their groups alike. Each has its own rank 0."""
    ours, other = open_device(SECRET), open_device(SECRET)
    came = []

    def lead() -> None:
        with suppress(rdmatensor.DeadlineExceeded), rdmatensor.Group(other, 0, 2, timeout=2):
            came.append("it came to the other one")

    root = threading.Thread(target=lead)
    root.start()
    with (
        relay(other.address) as address,
        pytest.raises(rdmatensor.ConnectionRefused, match="not the wanted one") as caught,
    ):
        rdmatensor.Group(ours, 1, 2, address, timeout=20, expect="the wanted one")
    assert caught.value.status == "REFUSED" and other.name in str(caught.value)
    root.join()
    assert came == []


def test_half_a_message_each(open_device: Open) -> None:
    """The same with those that begin to speak, over both kinds of socket."""
    ours, theirs = open_device(), open_device()
    probe = Line(theirs.address)
    name = Meeting(probe).hello()["local_name"]
    probe.close()
    slow = [Line(theirs.address if i % 2 else name) for i in range(SILENT)]
    for line in slow:
        with suppress(BrokenPipeError):  # that one made room for a newer one
            line.socket.sendall(b"R")
    assert works(ours, theirs)
    for line in slow:
        line.close()


def test_a_peer_that_hides_its_end_keeps_one_place(open_device: Open, setting: Setting) -> None:
    """Strangers that leave in the middle of a handshake keep no place."""
    ours, theirs = open_device(CONNECTIONS=3), open_device()
    for _ in range(20):
        line = Line(theirs.address)
        name = Meeting(line).hello()["local_name"]
        line.close()
        line = Line(name)
        meeting = Meeting(line)
        meeting.hello()
        line.socket.sendall(meeting.attach_message("shm", b"12345678"))
        line.close()
    assert works(ours, theirs)
