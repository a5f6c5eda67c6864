# SPDX-License-Identifier: Apache-2.0
"""Memory that peers allocate here and give back, and memory that other libraries allocated."""

from __future__ import annotations

import gc
import mmap
import os
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rdmatensor
from rdmatensor import Access, RemoteDevice
from support.waits import lost, until

REGIONS = "device.stats().regions"
LIMITS = {"RDMATENSOR_TEST_REMOTE_REGIONS": "50", "RDMATENSOR_REMOTE_ALLOC_LIMIT": str(1 << 20)}


@pytest.fixture
def limited(spawn: Any, device: rdmatensor.Device) -> tuple[Any, RemoteDevice]:
    peer = spawn(LIMITS)
    return peer, device.connect(peer.address)


def test_closing_frees_what_was_allocated_at_the_peer(limited: Any) -> None:
    peer, remote = limited
    for i in range(60):
        with remote.allocate(1 << 20) as region:  # all that there may be
            region.write(bytes([i & 255]) * 100).wait()
            assert (region.read(0, 100) == i & 255).all()
    until("what was closed stays", lambda: peer.get(REGIONS) == 0)


def test_dropping_frees_unless_an_array_or_a_transfer_uses_it(limited: Any) -> None:
    peer, remote = limited
    for _ in range(60):
        remote.allocate(4096).write(bytes(4096)).wait()
    gc.collect()
    until("what was dropped stays", lambda: peer.get(REGIONS) == 0)
    region = remote.allocate(4096)
    key = region.key
    again = remote.region(key)
    region.close()
    again.write(b"1").wait()
    assert peer.get(REGIONS) == 1
    if remote.capabilities & rdmatensor.Capability.MAP:
        array = again.map()
        again.close()
        assert bytes(array[:2]) == b"1\0"
        assert peer.get(REGIONS) == 1
        del array
    again.close()
    until("what nothing uses stays", lambda: peer.get(REGIONS) == 0)
    with pytest.raises(rdmatensor.RegionError):
        remote.region(key)


@pytest.mark.any_transport
def test_an_array_while_another_thread_closes() -> None:
    """It is the memory or Closed, at every moment between."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for turn in range(60):
            device = rdmatensor.Device()
            region = device.allocate(1 << 20)
            closing = threading.Thread(target=device.close if turn % 2 else region.close)
            closing.start()
            with pytest.raises(rdmatensor.Closed):
                while True:
                    assert region.array.size == 1 << 20
            closing.join()
            device.close()
    finally:
        sys.setswitchinterval(interval)


def test_many_are_freed_at_once(limited: Any) -> None:
    """Also where a socket does not take so many messages, because the peer stands still."""
    peer, remote = limited
    for _ in range(2):
        regions = [remote.allocate(64) for _ in range(50)]
        with pytest.raises(rdmatensor.DeviceError, match="50 regions") as caught:
            remote.allocate(64)
        assert caught.value.status == "LIMIT"
        peer.stop()
        for region in regions:
            region.close()
        peer.resume()
    remote.allocate(64).close()
    until("what was closed stays", lambda: peer.get(REGIONS) == 0)


def test_what_comes_too_late_is_freed(limited: Any) -> None:
    peer, remote = limited
    peer.stop()
    for _ in range(10):
        with pytest.raises(rdmatensor.DeadlineExceeded):
            remote.allocate(4096, timeout=0.01)
    peer.resume()
    remote.allocate(4096).close()
    until("allocated for nobody", lambda: peer.get(REGIONS) == 0)


def test_what_cannot_be_opened_is_freed(limited: Any, setting: Any) -> None:
    peer, remote = limited
    setting("REMOTE_OPEN_LIMIT", 100_000)
    for _ in range(60):
        with pytest.raises(rdmatensor.DeviceError, match="100000 bytes"):
            remote.allocate(200_000)
    until("allocated for nobody", lambda: peer.get(REGIONS) == 0)


def test_nobody_frees_the_regions_of_others(limited: Any, device: rdmatensor.Device) -> None:
    peer, remote = limited
    peer.run("own = device.allocate(64, name='own')")
    other = device.connect(peer.address)
    kept = other.allocate(64)
    for _ in range(3):
        remote.region("own").close()
        remote.region(peer.get("own.key")).close()
        with pytest.raises(rdmatensor.RegionError):
            remote.region(kept.key)
    kept.write(b"1").wait()
    remote.region("own").write(b"2").wait()
    assert peer.get("bytes(own.array[:1])") == b"2"
    other.close()
    until("it outlives its connection", lambda: peer.get(REGIONS) == 1)


# ---- memory of others ---------------------------------------------------------------------------


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    path = tmp_path / "weights"
    path.write_bytes(np.arange(1 << 18, dtype="u4").tobytes())
    return path


def sources(weights: Path) -> dict[str, Any]:
    frozen = np.arange(1000)
    frozen.flags.writeable = False
    with weights.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return {
        "memmap": np.memmap(weights, np.uint32, mode="r"),
        "mmap": mapped,
        "bytes": bytes(range(256)) * 100,
        "view of bytes": memoryview(b"abc" * 5000),
        "frozen": frozen,
        "plain": np.arange(5000.0),
        "part": np.arange(5000)[100:4000],
    }


def test_read_only_and_plain_memory_is_read_by_peers(
    peer: Any, device: rdmatensor.Device, weights: Path
) -> None:
    peer.run("remote = device.connect(where)", where=device.address)
    for name, source in sources(weights).items():
        region = device.register(source, Access.READ, name)
        assert region.array.tobytes() == bytes(memoryview(source).cast("B"))
        peer.run("region = remote.region(name); got = region.read().tobytes()", name=name)
        assert peer.get("got") == region.array.tobytes(), name
        assert peer.get("region.read(5, 7).tobytes()") == region.array.tobytes()[5:12]
        with pytest.raises(AssertionError, match="RegionError"):
            peer.run("region.write(b'1').wait()")
        with pytest.raises(AssertionError, match="Unsupported"):
            peer.run("region.map()")
    plain = sources(weights)["plain"]
    device.register(plain, Access.READ, "changes")
    peer.run("region = remote.region('changes')")
    for value in (1.0, 2.0):
        plain[:] = value
        assert peer.get("set(region.read().view('f8').tolist())") == {value}


def test_read_only_memory_is_not_registered_for_writing(
    device: rdmatensor.Device, weights: Path
) -> None:
    for name, source in sources(weights).items():
        if name in ("plain", "part"):
            continue
        for access in (Access.WRITE, Access.READ | Access.WRITE):
            with pytest.raises(rdmatensor.UsageError, match="read-only"):
                device.register(source, access)
    with pytest.raises(rdmatensor.UsageError, match="contiguous"):
        device.register(np.zeros((4, 4))[:, 1], Access.READ)


def test_withdrawn_memory_is_not_read(peer: Any, device: rdmatensor.Device) -> None:
    """Its addresses may hold something else by then."""
    plain = np.ones(1000)
    region = device.register(plain, Access.READ, "plain")
    peer.run(
        "remote = device.connect(where); region = remote.region('plain')", where=device.address
    )
    assert peer.get("set(region.read().view('f8').tolist())") == {1.0}
    region.close()
    plain[:] = 3
    with pytest.raises(AssertionError, match=r"RegionError|ConnectionLost"):
        peer.run("region.read()")


def test_memory_of_a_dead_process_is_not_read(peer: Any, device: rdmatensor.Device) -> None:
    peer.run("region = device.register(np.ones(1000), rdmatensor.Access.READ, 'plain')")
    region = device.connect(peer.address).region("plain")
    assert (region.read().view("f8") == 1).all()
    peer.kill()
    until("a dead process is read", lambda: lost(lambda: region.read()))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has a capability to give up")
def test_a_kernel_that_forbids_it_is_named(peer: Any, device: rdmatensor.Device) -> None:
    """A process may not read one that has capabilities which it lacks itself."""
    if "shm" not in rdmatensor.config.get("TRANSPORTS"):
        pytest.skip("only shm reads the memory of other processes")
    device.register(np.ones(1000), Access.READ, "plain")
    peer.run(
        """
        import ctypes
        remote = device.connect(where)
        version_3, none = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
        assert ctypes.CDLL(None).capset(version_3, none) == 0
        try:
            remote.region("plain")
        except rdmatensor.Unsupported as error:
            outcome = str(error)
        """,
        where=device.address,
    )
    assert "ptrace_scope" in peer.get("outcome")
    assert "another transport" in peer.get("outcome")


class OnAnother:
    def __dlpack_device__(self) -> tuple[int, int]:
        return 8, 0


def test_memory_of_another_kind_is_refused(
    device: rdmatensor.Device, remote: rdmatensor.RemoteDevice
) -> None:
    kinds = {name: each.memory_kinds for name, each in device.transports.items()}
    host = rdmatensor.MemoryKind.HOST
    assert kinds.pop("verbs", host) == host
    assert set(kinds.values()) == {host | rdmatensor.MemoryKind.CUDA}
    assert (remote.memory_kinds == host) == (remote.transport == "verbs")
    another: Any = OnAnother()
    with pytest.raises(rdmatensor.Unsupported, match="takes memory of kind OTHER"):
        device.register(another)
