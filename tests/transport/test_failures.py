# SPDX-License-Identifier: Apache-2.0
"""Peers that die, stall, restart or talk nonsense."""

from __future__ import annotations

import contextlib
import random
import socket
import struct
import threading
import time
from typing import Any

import pytest

import rdmatensor
from rdmatensor import RemoteDevice
from support.ports import free_ports
from support.waits import AT_ONCE, PATIENCE, lost, until


@pytest.mark.usefixtures("patient")
def test_killed_peer_is_lost_and_others_go_on(
    spawn: Any, device: rdmatensor.Device, note: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    doomed, other = spawn(), spawn()
    for peer in (doomed, other):
        peer.run("region = device.allocate(4096, name='region')")
    remote, survivor = device.connect(doomed.address), device.connect(other.address)
    more = [device.connect(doomed.address) for _ in range(2)]
    region, kept = remote.region("region"), survivor.region("region")
    region.write(b"1").wait()
    begin = time.monotonic()
    doomed.kill()
    until("the peer is not lost", lambda: lost(lambda: region.write(b"1").wait()))
    took = time.monotonic() - begin
    assert took < AT_ONCE, "the transport should tell at once"
    for action in (
        lambda: region.write(b"1"),
        lambda: region.read_into(bytearray(1)),
        lambda: remote.notify(b"1"),
        lambda: remote.region("region"),
        lambda: remote.allocate(8),
    ):
        with pytest.raises(rdmatensor.ConnectionLost) as caught:
            action()
        assert remote.name in str(caught.value) or remote.address in str(caught.value)
    assert not remote.up
    until("the other connections are not lost", lambda: device.stats().channels_lost == 3)
    assert not any(each.up for each in more)
    # They are lost to one event, and one line says so.
    said = [line for line in capfd.readouterr().err.splitlines() if "WARN" in line]
    assert len(said) == 1 and remote.name in said[0], said
    kept.write(b"12345678").wait()
    assert other.get("bytes(region.array[:8])") == b"12345678"
    assert device.stats().channels_lost == 3
    note("process killed", caught.value, took, "other peers")


def test_transfers_in_progress_fail_when_the_peer_dies(clogged: Any) -> None:
    clogged.peer.kill()
    with pytest.raises(rdmatensor.ConnectionLost):
        clogged.waiting.wait(PATIENCE)
    assert clogged.waiting.done()
    assert "failed" in repr(clogged.waiting)


@pytest.mark.usefixtures("patient")
def test_stopped_peer_hits_the_deadline(clogged: Any, note: Any) -> None:
    clogged.peer.run("region = device.allocate(4096, name='region')")
    clogged.peer.stop()
    try:
        begin = time.monotonic()
        with pytest.raises(rdmatensor.DeadlineExceeded) as caught:
            clogged.remote.region("region", timeout=0.5)
        took = time.monotonic() - begin
        with pytest.raises(rdmatensor.DeadlineExceeded):
            clogged.waiting.wait(0.5)
        assert time.monotonic() - begin < AT_ONCE
        assert not clogged.waiting.done()
    finally:
        clogged.peer.resume()
    clogged.peer.start("taken = sum(1 for _ in device.notifications(1))")
    clogged.waiting.wait(20)
    clogged.peer.finish()
    assert clogged.peer.get("taken") == clogged.posted
    assert clogged.remote.region("region").nbytes == 4096, "the connection goes on"
    seen = f"with a time-out of 0.5 s: {type(caught.value).__name__}: {caught.value}"
    note("peer stopped, then resumed", seen, took, "the connection; delayed messages arrive")
    note("queue full", "nothing: the Transfer waits for room", None, "everything arrives, in order")


def test_peer_stopped_for_long_is_lost(
    spawn: Any, device: rdmatensor.Device, setting: Any, note: Any
) -> None:
    """A transfer that waits for credit ends by itself, DEADLINE_MS after the peer took the last."""
    peer = spawn({"RDMATENSOR_TEST_RING_BYTES": "65536"})
    remote = device.connect(peer.address)
    setting("DEADLINE_MS", 1000)
    peer.stop()
    begin = time.monotonic()
    transfer = remote.notify(bytes(1000))
    with pytest.raises((rdmatensor.DeadlineExceeded, rdmatensor.ConnectionLost)):
        for _ in range(10000):  # where posting is slow, already this meets the deadline
            transfer = remote.notify(bytes(1000))
        transfer.wait(PATIENCE)
    until("the transfer does not end", lambda: transfer.done())
    took = time.monotonic() - begin
    with pytest.raises(rdmatensor.ConnectionLost) as caught:
        transfer.wait(0)
    note("peer stopped for long", caught.value, took, "other peers; connect again")


@pytest.mark.usefixtures("patient")
def test_connecting_to_a_stopped_peer_hits_the_deadline(
    peer: Any, device: rdmatensor.Device
) -> None:
    peer.stop()
    begin = time.monotonic()
    with pytest.raises(rdmatensor.DeadlineExceeded):
        device.connect(peer.address, timeout=0.5)
    assert time.monotonic() - begin < AT_ONCE


@pytest.mark.any_transport
def test_restarted_peer_has_a_new_generation(
    spawn: Any, device: rdmatensor.Device, note: Any
) -> None:
    first = spawn(device=False)
    port = free_ports(1)[0]
    first.run(
        f"device = rdmatensor.Device(port={port})\nregion = device.allocate(64, name='region')"
    )
    address = first.get("device.address")
    old = device.connect(address)
    stale = old.region("region")
    first.kill()
    second = spawn(device=False)
    second.run(
        f"device = rdmatensor.Device(port={port})\nregion = device.allocate(64, name='region')"
    )
    until("the peer is not lost", lambda: lost(lambda: stale.write(b"1").wait()))
    new = device.connect(address)
    assert new.generation != old.generation
    new.region("region").write(b"12345678").wait()
    with pytest.raises(rdmatensor.ConnectionLost) as caught:
        stale.write(b"87654321")
    seen = f"what was opened before: {type(caught.value).__name__}: {caught.value}"
    note("peer restarted", seen, None, "a new connection, to a new generation")
    assert second.get("bytes(region.array[:8])") == b"12345678"


def test_peer_that_closes_is_lost(peer: Any, remote: RemoteDevice) -> None:
    peer.run("region = device.allocate(64, name='region')")
    region = remote.region("region")
    peer.run("device.close()")
    until("the peer is not lost", lambda: lost(lambda: region.write(b"1").wait()))


@pytest.mark.any_transport
def test_own_close_cancels(clogged: Any) -> None:
    clogged.remote.close()
    clogged.remote.close()
    with pytest.raises((rdmatensor.Cancelled, rdmatensor.Closed)):
        clogged.waiting.wait(PATIENCE)
    with pytest.raises(rdmatensor.Closed):
        clogged.remote.notify()


def test_closing_the_device_ends_everything(clogged: Any, device: rdmatensor.Device) -> None:
    peer, remote = clogged.peer, clogged.remote
    region = remote.allocate(64)
    local = device.allocate(64)
    view = local.array
    device.close()
    device.close()
    with pytest.raises((rdmatensor.Cancelled, rdmatensor.Closed)):
        clogged.waiting.wait(PATIENCE)
    assert remote.closed and region.closed and local.closed
    view[:] = 1
    for action in (
        lambda: device.allocate(8),
        lambda: device.connect(peer.address),
        lambda: device.stats(),
        lambda: device.next_notification(0),
    ):
        with pytest.raises(rdmatensor.Closed):
            action()


@pytest.mark.any_transport
def test_nobody_listens(device: rdmatensor.Device) -> None:
    with pytest.raises(rdmatensor.ConnectionRefused) as caught:
        device.connect(f"127.0.0.1:{free_ports(1)[0]}", timeout=5)
    assert caught.value.status == "UNREACHABLE"


@pytest.mark.any_transport
@pytest.mark.parametrize(
    "address", ["", "127.0.0.1", "127.0.0.1:", ":1", "127.0.0.1:99999", "a:b:c", "x" * 5000]
)
def test_bad_addresses(device: rdmatensor.Device, address: str) -> None:
    with pytest.raises(rdmatensor.RdmaError):
        device.connect(address, timeout=5)


@pytest.mark.any_transport
def test_a_port_too_large_is_none_modulo_65536(device: rdmatensor.Device) -> None:
    host, port = device.address.rsplit(":", 1)
    with pytest.raises(rdmatensor.UsageError, match="ports go up to 65535"):
        device.connect(f"{host}:{int(port) + 65536}", timeout=5)


@pytest.mark.any_transport
def test_port_taken(device: rdmatensor.Device, note: Any) -> None:
    port = int(device.address.rsplit(":", 1)[1])
    with pytest.raises(rdmatensor.DeviceError) as caught:
        rdmatensor.Device(port=port)
    assert str(port) in str(caught.value) and "take another port" in str(caught.value)
    note("bootstrap port taken", caught.value, None, "the process that uses it")
    with pytest.raises(rdmatensor.UsageError):
        rdmatensor.Device(port=70000)
    with pytest.raises(rdmatensor.RdmaError):
        rdmatensor.Device(bind="not an address")


OPEN = """
try:
    device, refusal = rdmatensor.Device(), ''
except rdmatensor.RdmaError as error:
    refusal = f'{type(error).__name__}: {error}'
"""


@pytest.mark.any_transport
def test_no_common_transport_says_why(
    spawn: Any, device: rdmatensor.Device, transport: str
) -> None:
    other = "tcp" if transport == "shm" else "shm"
    peer = spawn({"RDMATENSOR_TRANSPORTS": other}, device=False)
    peer.run(OPEN)
    if peer.get("refusal"):
        pytest.skip(f"no peer can have {other} only here: {peer.get('refusal')}")
    with pytest.raises(rdmatensor.ConnectionRefused) as caught:
        device.connect(peer.get("device.address"))
    assert caught.value.status == "NO_TRANSPORT"
    assert f"{transport}: the peer does not have it" in str(caught.value)
    assert f"{other}: not in RDMATENSOR_TRANSPORTS" in str(caught.value)


@pytest.mark.any_transport
def test_machine_without_a_wanted_transport_says_why(spawn: Any) -> None:
    settings = {"TRANSPORTS": "verbs", "DEVICE": "nosuch7", "ENCRYPT": "off"}
    variables = {f"RDMATENSOR_{name}": value for name, value in settings.items()}
    peer = spawn(variables, device=False)
    peer.run(OPEN)
    refusal = peer.get("refusal")
    assert refusal.startswith("Unsupported"), refusal
    assert "RDMATENSOR_TRANSPORTS=verbs" in refusal
    assert "verbs: " in refusal and "shm: not in RDMATENSOR_TRANSPORTS" in refusal


@pytest.mark.any_transport
def test_misspelt_transport_is_refused(spawn: Any) -> None:
    for wanted in ("carrier-pigeon", "shm,verb", "verbs shm"):
        peer = spawn({"RDMATENSOR_TRANSPORTS": wanted}, device=False)
        peer.run(OPEN)
        refusal = peer.get("refusal")
        assert refusal.startswith("UsageError"), refusal
        assert wanted in refusal and "choose from shm,verbs,tcp" in refusal


# ---- Nonsense on the bootstrap port ------------------------------------------------------------------


def raw(device: rdmatensor.Device) -> socket.socket:
    host, port = device.address.rsplit(":", 1)
    return socket.create_connection((host, int(port)), timeout=5)


def still_works(device: rdmatensor.Device, peer: Any) -> bool:
    """Whether a proper peer can connect to `device` and reach its region."""
    peer.run(
        """
        with device.connect(address, timeout=20) as remote:
            total = int(remote.region('region').read().sum())
        """,
        address=device.address,
    )
    return bool(peer.get("total") == 64)


@pytest.fixture
def listening(device: rdmatensor.Device) -> rdmatensor.Device:
    device.allocate(64, name="region").array[:] = 1
    return device


def hello(peer: Any) -> bytes:
    """The first bytes of a real peer, as a listener of ours sees them."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(20)
        host, port = server.getsockname()
        peer.start(
            f"""
            try:
                device.connect('{host}:{port}', timeout=2)
            except rdmatensor.RdmaError as error:
                outcome = error.status
            """
        )
        line, _ = server.accept()
        with line:
            line.settimeout(20)
            data = line.recv(65536)
    peer.finish()
    assert peer.get("outcome") in ("CONNECTION_LOST", "PROTOCOL", "UNREACHABLE", "REFUSED")
    return data


@pytest.mark.any_transport
@pytest.mark.parametrize(
    "data",
    [b"", b"\0", b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 10000, bytes(10000)],
    ids=["empty", "one byte", "http", "ones", "zeros"],
)
def test_garbage_is_refused(listening: rdmatensor.Device, peer: Any, data: bytes) -> None:
    with raw(listening) as line:
        line.settimeout(15)
        with contextlib.suppress(OSError):  # it may have hung up before we are through
            line.sendall(data)
            line.shutdown(socket.SHUT_WR)
            while line.recv(4096):
                pass
    assert still_works(listening, peer)


@pytest.mark.any_transport
def test_mutated_hellos_are_survived(listening: rdmatensor.Device, peer: Any) -> None:
    """Truncated, bit-flipped and oversized first messages of a real peer."""
    good = hello(peer)
    assert len(good) > 8
    chance = random.Random(1)
    for turn in range(150):
        data = bytearray(good)
        if turn % 3 == 0:
            del data[chance.randrange(len(data)) :]
        else:
            for _ in range(turn % 5 + 1):
                data[chance.randrange(len(data))] = chance.randrange(256)
        with raw(listening) as line:
            line.sendall(data)
    assert still_works(listening, peer)


@pytest.mark.any_transport
def test_every_word_of_the_hello_is_checked(listening: rdmatensor.Device, peer: Any) -> None:
    good = hello(peer)
    for position in range(0, len(good) - 3, 4):
        for value in (0, 0x7FFFFFFF, 0xFFFFFFFF):
            data = good[:position] + struct.pack("<I", value) + good[position + 4 :]
            with raw(listening) as line:
                line.sendall(data)
    assert still_works(listening, peer)


@pytest.mark.any_transport
@pytest.mark.usefixtures("patient")
def test_silent_connections_block_nobody(listening: rdmatensor.Device, peer: Any) -> None:
    silent = [raw(listening) for _ in range(20)]
    begin = time.monotonic()
    assert still_works(listening, peer)
    assert time.monotonic() - begin < AT_ONCE
    for line in silent:
        line.close()


@pytest.mark.any_transport
@pytest.mark.usefixtures("patient")
def test_not_an_rdmatensor_port(device: rdmatensor.Device) -> None:
    """A server that answers something else, and one that says nothing."""
    for answer in (b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\0" * 4096, b""):
        with socket.create_server(("127.0.0.1", 0)) as server:
            if answer:
                peer_answers(server, answer)
            host, port = server.getsockname()
            begin = time.monotonic()
            with pytest.raises((rdmatensor.ConnectionFailure, rdmatensor.DeadlineExceeded)):
                device.connect(f"{host}:{port}", timeout=1)
            assert time.monotonic() - begin < AT_ONCE


def peer_answers(server: socket.socket, answer: bytes) -> None:
    def serve() -> None:
        line, _ = server.accept()
        with line:
            line.sendall(answer)
            line.settimeout(2)
            with contextlib.suppress(OSError):
                line.recv(65536)

    threading.Thread(target=serve, daemon=True).start()
