# SPDX-License-Identifier: Apache-2.0
"""The transport that a connection takes: the first that works. Here shm is better than tcp."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import rdmatensor
import rdmatensor.faults
from rdmatensor._ffi import ffi, lib
from support.waits import PATIENCE

Setting = Callable[[str, str | int], None]


@pytest.fixture
def server(setting: Setting) -> Iterator[rdmatensor.Device]:
    setting("TRANSPORTS", "shm,tcp")
    setting("FAULTS", "transport=shm,connect=1")
    with rdmatensor.Device(name="server") as device:
        device.allocate(8, name="memory")
        yield device


@pytest.fixture
def client(server: rdmatensor.Device) -> Iterator[rdmatensor.Device]:
    with rdmatensor.Device(name="client") as device:
        yield device


def moves(remote: rdmatensor.RemoteDevice) -> bool:
    region = remote.region("memory")
    region.write(b"12345678").wait(PATIENCE)
    return region.read().tobytes() == b"12345678"


def better(remote: rdmatensor.RemoteDevice) -> str:
    """The transports that a client may try later, to replace the channel."""
    return ffi.string(lib.rdt_channel_better(remote._channel)).decode()


@pytest.mark.parametrize("end", ["#1", "#2"], ids=["theirs", "ours"])
def test_next_transport_follows_at_once(
    server: rdmatensor.Device, client: rdmatensor.Device, setting: Setting, end: str
) -> None:
    setting("FAULTS", f"transport=shm,connect={end}")
    with client.connect(server.address) as remote:
        assert remote.transport == "tcp"
        assert "a fault was injected" in remote.passed_over["shm"]
        assert moves(remote)
    with client.connect(server.address) as remote:  # what failed quickly is tried each time
        assert (remote.transport, remote.passed_over) == ("shm", {})
        assert moves(remote)


def test_error_names_every_transport(
    server: rdmatensor.Device, client: rdmatensor.Device, setting: Setting
) -> None:
    setting("FAULTS", "connect=1")
    with pytest.raises(rdmatensor.ConnectionRefused) as caught:
        client.connect(server.address)
    said = str(caught.value)
    assert "shm: " in said and "tcp: " in said and said.count("a fault was injected") == 2, said


def test_forced_transport_does_not_fall_back(
    server: rdmatensor.Device, client: rdmatensor.Device
) -> None:
    with pytest.raises(rdmatensor.RdmaError, match="a fault was injected") as caught:
        client.connect(server.address, transports=["shm"])
    assert "tcp" not in str(caught.value)


def test_slow_failure_is_remembered_for_a_while(
    server: rdmatensor.Device, client: rdmatensor.Device, setting: Setting
) -> None:
    setting("FAULTS", "transport=shm,connect=1,hang=1:300ms")
    for _ in range(2):
        with client.connect(server.address) as remote:
            assert (remote.transport, list(remote.passed_over)) == ("tcp", ["shm", "verbs"])
            assert better(remote) == "shm"
    assert rdmatensor.faults.counts()["hang"] == 1
    setting("FAULTS", "")
    with client.connect(server.address, transports=["shm"]) as remote:  # no other is left
        assert remote.transport == "shm"


def test_what_may_work_another_time(
    server: rdmatensor.Device, client: rdmatensor.Device, setting: Setting
) -> None:
    """What failed, or was not permitted; not what one of the devices lacks, nor what is worse."""
    with client.connect(server.address) as remote:
        assert (remote.transport, better(remote)) == ("tcp", "shm")
    setting("FAULTS", "")
    with client.connect(server.address) as remote:
        assert (remote.transport, better(remote)) == ("shm", "")
    with client.connect(server.address, transports=["tcp"]) as remote:
        assert (remote.transport, better(remote)) == ("tcp", "shm")
    setting("TRANSPORTS", "tcp")
    with rdmatensor.Device(name="lacks shm") as other, other.connect(server.address) as remote:
        assert (remote.transport, better(remote)) == ("tcp", "")
    assert ffi.string(lib.rdt_channel_better(ffi.NULL)) == b""


def test_groups_take_it_too(server: rdmatensor.Device, client: rdmatensor.Device) -> None:
    sums = [0.0, 0.0]

    def join(rank: int, device: rdmatensor.Device) -> None:
        with rdmatensor.Group(device, rank, 2, server.address) as group:
            array = np.full(1 << 18, rank + 1.0, np.float32)
            group.all_reduce(array, out=array)
            sums[rank] = array.max()

    members = [threading.Thread(target=join, args=each) for each in enumerate((server, client))]
    for member in members:
        member.start()
    for member in members:
        member.join(PATIENCE)
    assert sums == [3.0, 3.0]


def test_wrong_secret_is_no_matter_of_the_transport(
    server: rdmatensor.Device, setting: Setting, tmp_path: Path
) -> None:
    setting("FAULTS", "")
    secret = tmp_path / "secret"
    secret.touch(0o600)
    secret.write_text("0" * 32)
    setting("SECRET_FILE", str(secret))
    with (
        rdmatensor.Device(name="stranger") as stranger,
        pytest.raises(rdmatensor.ConnectionRefused, match="secret") as caught,
    ):
        stranger.connect(server.address)
    assert "shm: " not in str(caught.value)


def controls() -> list[str]:
    """The congestion controls of this process's TCP connections."""
    found = []
    for number in Path("/proc/self/fd").iterdir():
        try:
            copy = os.dup(int(number.name))
        except OSError:
            continue  # it listed the folder
        if not stat.S_ISSOCK(os.fstat(copy).st_mode):
            os.close(copy)
            continue
        with socket.socket(fileno=copy) as end, contextlib.suppress(OSError):
            if end.type == socket.SOCK_STREAM and end.family != socket.AF_UNIX:
                end.getpeername()
                name = end.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
                found.append(name.rstrip(b"\0").decode())
    return found


def test_one_address_needs_no_clock(setting: Setting) -> None:
    """Congestion controls such as bbr delay what never leaves the host."""
    setting("TRANSPORTS", "tcp")
    with rdmatensor.Device(name="server") as server, rdmatensor.Device(name="client") as client:
        server.allocate(8, name="memory")
        before = controls().count("reno")
        with client.connect(server.address) as remote:
            assert moves(remote)
            assert controls().count("reno") >= before + 2  # one at each end
