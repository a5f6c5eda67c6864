# SPDX-License-Identifier: Apache-2.0
"""Write, read, map, batch: what arrives, and what is refused before a byte moves."""

from __future__ import annotations

import contextlib
import hashlib
import threading
import zlib
from typing import Any

import numpy as np
import pytest

import rdmatensor
from rdmatensor import Access, RemoteDevice

LARGEST = 64 << 20
# The others are alike for other transports; two hosts send each other the longest, too.
EXTENTS = [(0, 13), (1, 13), (4096, 0), (1 << 20, 13)] + [
    pytest.param(*each, marks=pytest.mark.any_transport)
    for each in ((0, 0), (1, 0), (8, 0), (8, 13), (4096, 13), (1 << 20, 0), (LARGEST, 0))
]


def pattern(size: int, seed: int = 1) -> Any:
    """Bytes that differ from each other and between seeds."""
    return np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8)


def digest(data: Any) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.fixture
def inbox(peer: Any, remote: RemoteDevice) -> rdmatensor.RemoteRegion:
    peer.run("inbox = device.allocate(1 << 16, name='inbox')")
    return remote.region("inbox")


@pytest.mark.parametrize(("size", "offset"), EXTENTS)
def test_write_arrives(peer: Any, remote: RemoteDevice, size: int, offset: int) -> None:
    peer.run("import hashlib\nregion = device.allocate(size + 32, name='region')", size=size)
    data = pattern(size)
    remote.region("region").write(data, offset, notify=7).wait()
    peer.run("note = device.next_notification(20)")
    assert peer.get("note.immediate") == 7
    assert peer.get("note.payload") == b""
    expression = "hashlib.sha256(region.array[offset:offset + size]).hexdigest()"
    assert peer.get(expression, offset=offset) == digest(data)
    assert not peer.get("region.array[:offset].any() or region.array[offset + size:].any()")


@pytest.mark.parametrize(("size", "offset"), EXTENTS)
def test_read_gets(peer: Any, remote: RemoteDevice, size: int, offset: int) -> None:
    peer.run(
        """
        region = device.allocate(size + 32, name='region')
        region.array[:] = np.arange(size + 32, dtype='uint32').view('uint8')[:size + 32]
        """,
        size=size,
    )
    target = np.zeros(size, dtype=np.uint8)
    region = remote.region("region")
    region.read_into(target, offset).wait()
    expected = np.arange(size + 32, dtype="uint32").view("uint8")[offset : offset + size]
    assert np.array_equal(target, expected)
    if size < LARGEST:
        assert np.array_equal(region.read(offset, size), expected)


@pytest.mark.any_transport
@pytest.mark.parametrize(
    "data",
    [
        b"12345678",
        bytearray(b"12345678"),
        memoryview(b"0012345678")[2:],
        np.frombuffer(b"12345678", dtype=np.int64),
        np.frombuffer(b"12345678", dtype="datetime64[s]"),
        np.frombuffer(b"12345678", dtype=np.int16).reshape(2, 2),
        np.frombuffer(b"12345678", dtype=np.int64).reshape(()),
    ],
    ids=lambda data: f"{type(data).__name__}-{getattr(data, 'dtype', '')}",
)
def test_sources_are_any_contiguous_bytes(
    peer: Any, inbox: rdmatensor.RemoteRegion, data: Any
) -> None:
    inbox.write(data).wait()
    assert peer.get("bytes(inbox.array[:8])") == b"12345678"


@pytest.mark.any_transport
@pytest.mark.parametrize(
    ("data", "remedy"),
    [
        (np.zeros((8193, 4))[:, 1], "ascontiguousarray"),
        (np.zeros((128, 128)).T[:, 1:], "ascontiguousarray"),
        ("text", "encode"),
        (3, "bytes"),
        (None, "bytes"),
    ],
    ids=["strided", "transposed", "str", "int", "None"],
)
def test_other_sources_are_refused(inbox: rdmatensor.RemoteRegion, data: Any, remedy: str) -> None:
    with pytest.raises(rdmatensor.UsageError, match=remedy):
        inbox.write(data)


@pytest.mark.any_transport
def test_read_only_target_is_refused(inbox: rdmatensor.RemoteRegion) -> None:
    with pytest.raises(rdmatensor.UsageError, match="writable"):
        inbox.read_into(b"1234")


def test_typed_regions(peer: Any, device: rdmatensor.Device, remote: RemoteDevice) -> None:
    peer.run("region = device.allocate((3, 5), 'float32', name='matrix')")
    remote.region("matrix").write(np.arange(15, dtype="float32")).wait()
    np.testing.assert_array_equal(
        peer.get("region.array"), np.arange(15, dtype="float32").reshape(3, 5)
    )
    with pytest.raises(rdmatensor.UsageError, match="objects"):
        device.allocate(4, dtype=object)
    with pytest.raises(rdmatensor.UsageError, match="dimension"):
        device.allocate((4, -1))


def test_map_uses_the_peers_bytes_in_place(peer: Any, mappable: RemoteDevice) -> None:
    peer.run("region = device.allocate(4096, name='region')\nregion.array[10] = 5")
    region = mappable.region("region")
    view = region.map()
    assert view[10] == 5
    peer.run("region.array[10] = 6")
    assert view[10] == 6
    view[11] = 9
    assert peer.get("int(region.array[11])") == 9
    region.close()
    assert view[10] == 6, "a view keeps the mapping"


@pytest.mark.any_transport
def test_map_without_write_access_is_read_only(peer: Any, mappable: RemoteDevice) -> None:
    peer.run("region = device.allocate(4096, access=rdmatensor.Access.READ, name='region')")
    view = mappable.region("region").map(dtype="int32")
    assert view.shape == (1024,)
    with pytest.raises(ValueError, match="read-only"):
        view[0] = 1
    with pytest.raises(ValueError, match="WRITEABLE"):
        view.flags.writeable = True


@pytest.mark.any_transport
def test_view_outlives_peer_and_device(peer: Any, mappable: RemoteDevice) -> None:
    peer.run("region = device.allocate(1 << 20, name='region')\nregion.array[:] = 3")
    view = mappable.region("region").map()
    peer.kill()
    mappable.close()
    assert view.sum() == 3 << 20


@pytest.mark.any_transport
@pytest.mark.parametrize(
    ("offset", "size"), [(1 << 16, 1), (0, (1 << 16) + 1), (2**64 - 1, 2), (1, 1 << 16)]
)
def test_out_of_range_is_refused(inbox: rdmatensor.RemoteRegion, offset: int, size: int) -> None:
    for attempt in (
        lambda: inbox.write(np.zeros(size, np.uint8), offset),
        lambda: inbox.read_into(np.zeros(size, np.uint8), offset),
    ):
        with pytest.raises(rdmatensor.RegionError) as caught:
            attempt()
        assert caught.value.status == "RANGE"


@pytest.mark.any_transport
def test_map_out_of_range_is_refused(peer: Any, mappable: RemoteDevice) -> None:
    peer.run("region = device.allocate(4096, name='region')")
    region = mappable.region("region")
    for offset, size in ((4096, 1), (0, 4097), (2**64 - 1, 2)):
        with pytest.raises(rdmatensor.RegionError) as caught:
            region.map(offset, size)
        assert caught.value.status == "RANGE"


def test_map_where_there_is_none_says_so(
    inbox: rdmatensor.RemoteRegion, remote: RemoteDevice
) -> None:
    if remote.capabilities & rdmatensor.Capability.MAP:
        pytest.skip(f"transport {remote.transport} can map remote memory")
    with pytest.raises(rdmatensor.Unsupported, match="read it instead"):
        inbox.map()


@pytest.mark.any_transport
@pytest.mark.parametrize("offset", [-1, 2**64, 1.5, "0"])
def test_offsets_are_checked(inbox: rdmatensor.RemoteRegion, offset: Any) -> None:
    with pytest.raises(rdmatensor.UsageError):
        inbox.write(b"1", offset)
    inbox.write(b"1", 1).wait()


def test_access_is_enforced(peer: Any, remote: RemoteDevice) -> None:
    peer.run(
        """
        readable = device.allocate(64, access=rdmatensor.Access.READ, name='readable')
        writable = device.allocate(64, access=rdmatensor.Access.WRITE, name='writable')
        """
    )
    readable, writable = remote.region("readable"), remote.region("writable")
    assert (readable.access, writable.access) == (Access.READ, Access.WRITE)
    writable.write(b"12345678").wait()
    assert readable.read(0, 8).sum() == 0
    for attempt in (lambda: readable.write(b"1"), lambda: writable.read(0, 1)):
        with pytest.raises(rdmatensor.RegionError) as caught:
            attempt()
        assert caught.value.status == "ACCESS"
    assert peer.get("int(readable.array.sum())") == 0


def test_regions_by_key_and_unknown_ones(peer: Any, remote: RemoteDevice) -> None:
    key = peer.get("(region := device.allocate(64)).key")
    assert remote.region(key).nbytes == 64
    for unknown in (key ^ 1, 0, 2**64 - 1, "nameless", ""):
        with pytest.raises((rdmatensor.RegionError, rdmatensor.UsageError)):
            remote.region(unknown)
    with pytest.raises(rdmatensor.UsageError):
        remote.region(-1)


@pytest.mark.any_transport
def test_keys_do_not_repeat(device: rdmatensor.Device) -> None:
    keys = set()
    for _ in range(100):
        with device.allocate(8) as region:
            keys.add(region.key)
    assert len(keys) == 100
    assert len({key >> 32 for key in keys}) > 50, "keys can be guessed"


@pytest.mark.any_transport
def test_names_are_unique(device: rdmatensor.Device) -> None:
    first = device.allocate(8, name="name")
    with pytest.raises(rdmatensor.UsageError):
        device.allocate(8, name="name")
    first.close()
    device.allocate(8, name="name")
    device.allocate(8, name="n" * 63)
    with pytest.raises(rdmatensor.RdmaError):
        device.allocate(8, name="n" * 64)


def test_closed_regions(peer: Any, remote: RemoteDevice, device: rdmatensor.Device) -> None:
    peer.run("region = device.allocate(64, name='region')\nview = region.array")
    region = remote.region("region")
    peer.run("region.close()\nregion.close()\nview[:] = 1")
    assert peer.get("region.closed and view.sum() == 64")
    with pytest.raises(rdmatensor.RegionError):
        remote.region("region")
    region.close()
    region.close()
    with pytest.raises(rdmatensor.Closed):
        region.write(b"1")
    with pytest.raises(rdmatensor.Closed):
        region.map()
    local = device.allocate(8)
    local.close()
    with pytest.raises(rdmatensor.Closed):
        _ = local.array


def test_old_keys_open_nothing(peer: Any, remote: RemoteDevice, device: rdmatensor.Device) -> None:
    """Neither that of a closed region, nor one of a device that was there before."""
    peer.run("first, second = device.allocate(64), device.allocate(64)")
    keys = peer.get("[first.key, second.key]")
    for key in keys:
        remote.region(key).close()
    peer.run("first.close(); third = device.allocate(64)")
    with pytest.raises(rdmatensor.RegionError) as caught:
        remote.region(keys[0])
    assert caught.value.status == "NO_REGION"
    port = peer.address.rsplit(":", 1)[1]
    peer.run(f"device.close(); device = rdmatensor.Device(port={port}); device.allocate(64)")
    again = device.connect(peer.address)
    for key in keys:
        with pytest.raises(rdmatensor.RegionError) as caught:
            again.region(key)
        assert caught.value.status == "NO_REGION"


def test_batch_is_executed_in_order(peer: Any, remote: RemoteDevice) -> None:
    peer.run("region = device.allocate(64, name='region')")
    region = remote.region("region")
    source, target = np.zeros(8, np.uint8), np.zeros(8, np.uint8)
    batch = (
        remote.batch()
        .write(region, source)
        .write(region, source, offset=8, notify=1)
        .read_into(region, target)
        .notify(b"end", immediate=2)
    )
    for turn in range(1, 4):
        source[:] = turn
        remote.post(batch).wait()
        assert target.tolist() == [turn] * 8
        peer.run("notes = [device.next_notification(20) for _ in range(2)]")
        assert peer.get("[(n.immediate, n.payload) for n in notes]") == [(1, b""), (2, b"end")]
        assert peer.get("int(region.array.sum())") == 16 * turn


def test_nothing_of_a_bad_batch_is_executed(peer: Any, remote: RemoteDevice) -> None:
    peer.run("region = device.allocate(64, name='region')")
    region = remote.region("region")
    batch = remote.batch().write(region, b"11111111").notify(b"1").write(region, b"2", offset=64)
    with pytest.raises(rdmatensor.RegionError):
        remote.post(batch)
    assert peer.get("int(region.array.sum())") == 0
    with pytest.raises(rdmatensor.DeadlineExceeded):
        peer_note(peer)
    other = remote._device.connect(peer.address)
    with pytest.raises(rdmatensor.UsageError):
        other.batch().write(region, b"1")
    with pytest.raises(rdmatensor.UsageError):
        other.post(remote.batch())


def peer_note(peer: Any) -> None:
    """Raises DeadlineExceeded here if the peer has no notification."""
    peer.run(
        """
        try:
            device.next_notification(0)
            empty = False
        except rdmatensor.DeadlineExceeded:
            empty = True
        """
    )
    if peer.get("empty"):
        raise rdmatensor.DeadlineExceeded("none")


@pytest.mark.any_transport
def test_empty_batch(remote: RemoteDevice) -> None:
    with contextlib.suppress(rdmatensor.UsageError):  # either is a clear answer
        remote.post(remote.batch()).wait()


def test_thousand_transfers_with_checksums(peer: Any, remote: RemoteDevice) -> None:
    count, size = 1000, 5000
    peer.run(
        """
        import zlib
        region = device.allocate(size * 8, name='region')
        def check():
            bad = []
            for turn in range(count):
                note = device.next_notification(20)
                slot = note.immediate % 8
                data = region.array[slot * size:(slot + 1) * size]
                if (note.immediate, zlib.crc32(data)) != (turn, int.from_bytes(note.payload, 'little')):
                    bad.append(turn)
                note.source.notify(immediate=turn)
            return bad
        """,
        count=count,
        size=size,
    )
    region = remote.region("region")
    device = remote._device
    peer.start("bad = check()")
    for turn in range(count):
        if turn >= 8:  # a slot may be used again once the peer has looked at it
            assert device.next_notification(20).immediate == turn - 8
        data = pattern(size, turn)
        region.write(data, turn % 8 * size)
        remote.notify(zlib.crc32(data).to_bytes(4, "little"), turn)
    peer.finish()
    assert peer.get("bad") == []


@pytest.mark.any_transport
def test_many_threads_post(peer: Any, remote: RemoteDevice) -> None:
    threads, each = 8, 200
    peer.run("region = device.allocate(8 * 64, name='region')", threads=threads)
    region = remote.region("region")
    failures: list[BaseException] = []

    def work(index: int) -> None:
        data = np.full(64, index + 1, dtype=np.uint8)
        back = np.zeros(64, dtype=np.uint8)
        try:
            for turn in range(each):
                region.write(data, 64 * index, notify=index << 32 | turn).wait()
                region.read_into(back, 64 * index).wait()
                assert (back == data).all()
        except BaseException as error:
            failures.append(error)

    peer.start(f"seen = [device.next_notification(20).immediate for _ in range({threads * each})]")
    workers = [threading.Thread(target=work, args=(index,)) for index in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(30)
    peer.finish()
    assert failures == []
    seen = peer.get("seen")
    for index in range(threads):
        assert [s & 0xFFFFFFFF for s in seen if s >> 32 == index] == list(range(each))


def test_remote_allocate_and_its_limit(spawn: Any, device: rdmatensor.Device) -> None:
    peer = spawn({"RDMATENSOR_REMOTE_ALLOC_LIMIT": str(1 << 20)})
    remote = device.connect(peer.address)
    region = remote.allocate((256, 256), "float32")
    assert region.nbytes == 256 * 1024
    data = pattern(region.nbytes)
    region.write(data).wait()
    np.testing.assert_array_equal(region.read(), data)
    again = remote.region(region.key)
    np.testing.assert_array_equal(again.read(0, 100), data[:100])
    with pytest.raises(rdmatensor.DeviceError) as caught:
        remote.allocate(1 << 20)
    assert caught.value.status == "LIMIT"
    assert "REMOTE_ALLOC_LIMIT" in str(caught.value)
    with pytest.raises(rdmatensor.RdmaError):
        remote.allocate(0)
    before = peer.get("device.stats().regions")
    remote.close()
    peer.run(
        """
        for _ in range(200):
            if device.stats().regions < before: break
            time.sleep(0.05)
        """,
        before=before,
    )
    assert peer.get("device.stats().regions") == before - 1
    device.connect(peer.address).allocate(1 << 20)


def test_register_shares_existing_memory(peer: Any, remote: RemoteDevice) -> None:
    peer.run(
        """
        array = rdmatensor.empty((4, 4), 'int64')
        array[:] = 1
        region = device.register(array, name='region')
        part = device.register(array[1:3], access=rdmatensor.Access.READ, name='part')
        """
    )
    assert remote.region("region").read().view("int64").sum() == 16
    remote.region("region").write(np.full(4, 9, "int64"), offset=32).wait()
    assert remote.region("part").read().view("int64").tolist() == [9] * 4 + [1] * 4
    assert peer.get("array[1].tolist()") == [9] * 4
    peer.run(
        """
        try:
            device.register(np.zeros(4096, np.uint8))
            outcome = 'registered'
        except rdmatensor.Unsupported as error:
            outcome = str(error)
        """
    )
    outcome = peer.get("outcome")
    if remote.capabilities & rdmatensor.Capability.MAP:
        assert "access READ" in outcome, "only pages of its own can be written by others"
    else:
        assert outcome == "registered"
