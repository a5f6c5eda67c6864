# SPDX-License-Identifier: Apache-2.0
"""fetch_add and compare_swap: what they do, that nothing is lost among processes, and what is refused."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import numpy as np
import pytest

import rdmatensor
from rdmatensor import Access, Capability, Device, RemoteDevice, RemoteRegion

MOST = 2**64 - 1


@pytest.fixture
def words(peer: Any, remote: RemoteDevice) -> RemoteRegion:
    """Eight words of the peer, which sees them as `words.array`."""
    peer.run("words = device.allocate(8, 'uint64', name='words')")
    return remote.region("words")


def test_a_word(peer: Any, remote: RemoteDevice, words: RemoteRegion) -> None:
    assert Capability.ATOMIC in remote.capabilities
    assert words.fetch_add(8, 5) == 0
    assert words.fetch_add(8, -7) == 5
    assert words.fetch_add(8, MOST) == 2**64 - 2
    assert words.fetch_add(8, 2**63) == 2**64 - 3
    assert words.compare_swap(8, 1, 2) == 2**63 - 3
    assert words.compare_swap(8, 2**63 - 3, -1) == 2**63 - 3
    assert words.compare_swap(8, -1, 2**40 + 1) == MOST
    words.write(np.array([7], "uint64"), 56).wait()
    numpy: Any = np  # whose integers are no int to type checkers
    assert words.fetch_add(56, numpy.int64(1), timeout=20) == 7
    assert peer.get("words.array.tolist()") == [0, 2**40 + 1, 0, 0, 0, 0, 0, 8]
    assert remote._device.stats().atomics == 8


def test_processes_lose_nothing(spawn: Any, peer: Any, words: RemoteRegion) -> None:
    """Each adds in two threads, and each also adds to a second word under a lock in a third one."""
    adds, locked = 300, 20
    program = """
        def add():
            for _ in range(adds):
                words.fetch_add(0, 3)
        def add_locked():
            for _ in range(locked):
                while words.compare_swap(8, 0, 1) != 0:
                    pass
                value = words.read(16, 8).view('uint64') + 1
                words.write(value, 16).wait()
                assert words.compare_swap(8, 1, 0) == 1
        remote = device.connect(address)
        words = remote.region('words')
        others = [threading.Thread(target=add) for _ in range(2)]
        for each in others: each.start()
        add_locked()
        for each in others: each.join()
    """
    others = [spawn() for _ in range(2)]
    for each in others:
        each.start(program, adds=adds, locked=locked, address=peer.address)
    for _ in range(adds):
        words.fetch_add(0, 3)
    for each in others:
        each.finish()
    assert peer.get("words.array[:3].tolist()") == [3 * adds * 5, 0, locked * 2]


@pytest.mark.any_transport
def test_threads_share_a_region(peer: Any, words: RemoteRegion) -> None:
    olds: list[list[int]] = [[], [], []]

    def add(seen: list[int]) -> None:
        seen.extend(words.fetch_add(24, 1) for _ in range(200))

    threads = [threading.Thread(target=add, args=(seen,)) for seen in olds]
    for each in threads:
        each.start()
    for each in threads:
        each.join(60)
    assert sorted(old for seen in olds for old in seen) == list(range(600))
    assert all(seen == sorted(seen) for seen in olds)
    assert peer.get("int(words.array[3])") == 600


@pytest.mark.any_transport
def test_event_loop(words: RemoteRegion) -> None:
    async def count() -> list[int]:
        found = await asyncio.gather(*(words.afetch_add(0, 2) for _ in range(50)))
        assert await words.acompare_swap(0, 100, 1) == 100
        return found

    assert sorted(asyncio.run(count())) == list(range(0, 100, 2))
    assert words.fetch_add(0, 0) == 1


@pytest.mark.any_transport
def test_what_is_refused(peer: Any, remote: RemoteDevice, words: RemoteRegion) -> None:
    for number in (-(2**63) - 1, 2**64, 1.5, "1", None, True):
        bad: Any = number
        for call in (
            lambda bad=bad: words.fetch_add(0, bad),
            lambda bad=bad: words.compare_swap(0, bad, 0),
            lambda bad=bad: words.compare_swap(0, 0, bad),
        ):
            with pytest.raises(rdmatensor.UsageError):
                call()
    for offset in (-8, 2**64, 8.0, "0"):
        wrong: Any = offset
        with pytest.raises(rdmatensor.UsageError):
            words.fetch_add(wrong, 1)
    with pytest.raises(rdmatensor.UsageError, match="a multiple of 8, not 12"):
        words.fetch_add(12, 1)
    for beyond in (64, 2**64 - 8):
        with pytest.raises(rdmatensor.RegionError) as caught:
            words.compare_swap(beyond, 0, 1)
        assert caught.value.status == "RANGE"
    peer.run("memory = rdmatensor.empty(64); odd = device.register(memory[4:20], name='odd')")
    with pytest.raises(rdmatensor.Unsupported, match="does not begin at a multiple of 8 bytes"):
        remote.region("odd").fetch_add(0, 1)
    assert not peer.get("words.array.any() or memory.any()")
    words.close()
    with pytest.raises(rdmatensor.Closed):
        words.fetch_add(0, 1)


def test_both_rights_are_needed(peer: Any, remote: RemoteDevice) -> None:
    for access, lacking in ((Access.READ, "write"), (Access.WRITE, "read")):
        region = f"device.allocate(8, access=rdmatensor.Access({access.value}), name='{lacking}')"
        peer.run(f"{lacking}_lacks = {region}")
        with pytest.raises(
            rdmatensor.RegionError, match=f"does not permit peers to {lacking}"
        ) as e:
            remote.region(lacking).fetch_add(0, 1)
        assert e.value.status == "ACCESS"
    words = remote.allocate(2, "uint64")
    assert (words.fetch_add(8, 6), words.compare_swap(8, 6, 9), words.fetch_add(8, 0)) == (0, 6, 9)


def test_lost_peer(peer: Any, words: RemoteRegion, remote: RemoteDevice) -> None:
    assert words.fetch_add(0, 1) == 0
    peer.kill()
    with pytest.raises(rdmatensor.ConnectionLost):
        for _ in range(10**7):  # in place, until the end is noticed
            words.fetch_add(0, 1)


def test_peers_over_several_transports(spawn: Any, transport: str, setting: Any) -> None:
    """All count in one word, or those are refused whose device would not see what others add meanwhile."""
    both = ["shm", "tcp" if transport == "shm" else transport]
    owner = spawn({"RDMATENSOR_TRANSPORTS": ",".join(both)})
    owner.run("words = device.allocate(1, 'uint64', name='words')")
    setting("TRANSPORTS", ",".join(both))
    with Device() as device, Device() as other:
        near, far = (
            each.connect(owner.address, transports=[name])
            for each, name in zip((device, other), both, strict=True)
        )
        assert [near.transport, far.transport] == both
        counted = [near.region("words")]
        try:
            far.region("words").fetch_add(0, 0)
            counted.append(far.region("words"))
        except rdmatensor.Unsupported as error:
            assert transport == "verbs" and "set RDMATENSOR_TRANSPORTS=verbs there" in str(error)
        assert far.allocate(8).fetch_add(0, 1) == 0, "nobody else reaches this one"

        def add(region: RemoteRegion) -> None:
            for _ in range(300):
                region.fetch_add(0, 1)

        threads = [threading.Thread(target=add, args=(region,)) for region in counted]
        for each in threads:
            each.start()
        for each in threads:
            each.join(60)
        assert owner.get("int(words.array[0])") == 300 * len(counted)
