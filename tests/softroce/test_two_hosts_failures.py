# SPDX-License-Identifier: Apache-2.0
"""Between two hosts over verbs: what happens when hosts, processes, regions or devices fail."""

from __future__ import annotations

import time
from typing import Any

import pytest

from softroce.pairs import (
    DEADLINE,
    IMPATIENT,
    SLACK,
    Hosts,
    Pair,
    check_lost,
    connect,
    told,
    until_written,
    works,
)
from support.waits import until

# ---- Hosts and processes ------------------------------------------------------------------------------


def test_killed_host_is_lost_and_comes_back(hosts: Hosts, note: Any) -> None:
    pair = hosts.pair(region=1 << 18, **IMPATIENT)
    hosts.bystander(pair.ours)
    pair.ours.start("outcome = write_until_lost(region, pattern(1 << 18, 1))")
    until_written(pair)
    hosts.second.host.kill()
    killed = time.monotonic()
    pair.ours.finish(DEADLINE + SLACK + 10)
    took = time.monotonic() - killed
    assert took < DEADLINE + SLACK
    outcome = pair.ours.get("outcome")
    check_lost(outcome, pair, "transport retry counter exceeded (12)", "host")
    note("host killed", told(outcome), took, "other peers; the host can return")
    pair.ours.run("kept.write(b'1').wait(5)")
    hosts.second.clear()
    theirs = hosts.second.peer()
    theirs.run("region = device.allocate(4096, name='region')")
    assert works(Pair(pair.ours, theirs))


@pytest.mark.long
def test_idle_connection_to_a_killed_host_is_noticed(hosts: Hosts) -> None:
    """Nothing is under way, and no end of stream comes from a dead host: it is probed for."""
    pair = hosts.pair(**IMPATIENT)
    hosts.second.host.kill()
    until("nobody noticed", lambda: not pair.ours.get("remote.up"), DEADLINE + SLACK)
    outcome = pair.ours.get("attempt(lambda: remote.region('region', timeout=1))")
    assert outcome["kind"] == "ConnectionLost", outcome


def test_killed_process_is_lost_at_once_and_its_neighbour_is_not(hosts: Hosts) -> None:
    pair = hosts.pair(region=1 << 18, DEADLINE_MS=60000)
    neighbour = hosts.second.peer()
    neighbour.run("region = device.allocate(1 << 18, name='region')")
    pair.ours.run(
        "second = device.connect(address); other = second.region('region')",
        address=neighbour.address,
    )
    pair.ours.start("outcome = write_until_lost(region, pattern(1 << 18, 1))")
    until_written(pair)
    pair.theirs.kill()
    killed = time.monotonic()
    pair.ours.finish(SLACK + 10)
    assert time.monotonic() - killed < SLACK
    outcome = pair.ours.get("outcome")
    assert (outcome["kind"], outcome["pending"]) == ("ConnectionLost", 0), outcome
    assert pair.theirs.address in outcome["text"]
    pair.ours.run("other.write(pattern(1 << 18, 2)).wait(20)")
    assert neighbour.get("region.array[0]") == pair.ours.get("pattern(1 << 18, 2)[0]")


def test_stopped_process(hosts: Hosts) -> None:
    """Its memory can be reached: its device answers. Only what needs the process waits, not for ever."""
    pair = hosts.pair(TEST_RING_BYTES=65536, **IMPATIENT)
    pair.theirs.stop()
    try:
        pair.ours.run("region.write(b'12345678').wait(20)")
        assert pair.ours.get("bytes(region.read(0, 8))") == b"12345678"
        asked = pair.ours.get("attempt(lambda: remote.region('other', timeout=1))")
        assert asked["kind"] == "DeadlineExceeded", asked
        pair.ours.start("outcome = until_lost(lambda: remote.notify(bytes(4096)).wait(20))")
        pair.ours.finish(DEADLINE + SLACK + 10)
        outcome = pair.ours.get("outcome")
        assert outcome["kind"] == "ConnectionLost", outcome
        assert outcome["took"] < DEADLINE + SLACK
        assert "took nothing for 4000 ms" in outcome["text"], outcome
    finally:
        pair.theirs.resume()
    assert works(pair)


# ---- Regions ------------------------------------------------------------------------------------------


def test_withdrawn_region_is_refused(hosts: Hosts) -> None:
    """The key is gone with the region: the peer's device refuses, and the connection with it."""
    pair = hosts.pair(**IMPATIENT)
    hosts.bystander(pair.ours)
    pair.theirs.run("withdrawn = device.allocate(4096, name='withdrawn'); view = withdrawn.array")
    pair.ours.run("stale = remote.region('withdrawn'); stale.write(b'good').wait(20)")
    pair.theirs.run("withdrawn.close()")
    outcome = pair.ours.get("attempt(lambda: stale.write(b'late').wait(20))")
    assert outcome["kind"] in ("RegionError", "ConnectionLost"), outcome
    assert outcome["took"] < DEADLINE + SLACK
    lost = pair.ours.get("until_lost(lambda: region.write(b'1').wait(20))")
    assert "remote access error (10)" in lost["text"], lost
    assert "withdrew the region, or its key is wrong" in lost["text"], lost
    assert pair.theirs.get("bytes(view[:4])") == b"good"
    pair.ours.run("kept.write(b'1').wait(5)")
    assert works(pair)


# ---- The system ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("transport", ["verbs", pytest.param("shm", marks=pytest.mark.long)])
def test_clock_jumps_do_not_matter(hosts: Hosts, transport: str, note: Any) -> None:
    """Time-outs, deadlines and probes go by the monotonic clock."""
    site = hosts.first
    ours, theirs = (site.peer(TRANSPORTS=transport, **IMPATIENT) for _ in range(2))
    ours.run("from softroce.traffic import *")
    theirs.run("region = device.allocate(4096, name='region')")
    connect(ours, theirs)
    assert ours.get("remote.transport") == transport
    began = ours.get("time.time()")
    try:
        for jump in ("+1 hour", "-3 hours", "+2 hours"):
            ours.start("outcome = attempt(lambda: device.next_notification(3))")
            site.host.run(["date", "-s", jump])
            ours.finish(60)
            outcome = ours.get("outcome")
            assert outcome["kind"] == "DeadlineExceeded", outcome
            assert 2.9 < outcome["took"] < 3 + SLACK
            if jump == "+1 hour":
                assert ours.get("time.time()") > began + 3000, "the clock did not jump"
            ours.run("region.write(b'12345678').wait(4); remote.notify(b'x').wait(4)")
            assert theirs.get("device.next_notification(4).payload") == b"x"
        # Longer than a probe is due.
        ours.run(f"time.sleep({DEADLINE})")
        assert ours.get("remote.up") and ours.get("device.stats().channels_lost") == 0
    finally:
        site.host.run(["date", "-s", f"@{time.time():.0f}"])
    note(
        "clock jump",
        "nothing",
        None,
        "everything, after jumps of hours in both directions",
        transport,
    )


def test_limit_of_locked_memory_is_an_error(hosts: Hosts, note: Any) -> None:
    """Of an ordinary user: root may lock what it likes."""
    site, settings = hosts.first, {"TRANSPORTS": "verbs", "SECRET_FILE": "", "INSECURE": "1"}
    theirs, ours = site.peer(**settings), site.process(**settings)
    theirs.run("region = device.allocate(4096, name='region')")
    site.host.run(["sh", "-c", "chmod 666 /dev/infiniband/uverbs*"])
    ours.run(
        """
        import os, resource
        from softroce.traffic import *  # as root: other users may not look into the folder of the sources
        limit = 24 << 20  # a device and a connection need half of it
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (limit, limit))
        os.setuid(65534)  # before the device is opened: the kernel lets no other user go on with it
        device = Device()
        """
    )
    connect(ours, theirs)
    ours.run("outcome = attempt(lambda: device.allocate(64 << 20))")
    outcome = ours.get("outcome")
    assert (outcome["kind"], outcome["status"]) == ("DeviceError", "LIMIT"), outcome
    assert "cannot pin 64 MiB" in outcome["text"] and "ulimit -l" in outcome["text"]
    ours.run("small = device.allocate(1 << 20).array[:4096]; region.write(small).wait(20)")
    note("memlock refused", f"DeviceError: {outcome['text']}", outcome["took"], "smaller regions")


@pytest.mark.long
def test_removed_device(hosts: Hosts, note: Any) -> None:
    """SoftRoCE's driver waits with the end of a device until nobody uses it; a card goes at once."""
    pair, host = hosts.pair(**IMPATIENT), hosts.first.host
    try:
        host.start(["rdma", "link", "delete", "rxe0"])
        until("rxe0 stays", lambda: "rxe0" not in host.run(["rdma", "link"]).stdout)
        pair.ours.run("region.write(b'12345678').wait(20)")
        refused = pair.ours.get("attempt(rdmatensor.Device)")
        assert refused["kind"] == "Unsupported" and "is being removed" in refused["text"], refused
        note("device removed", f"Device(): Unsupported: {refused['text']}", None, "open devices")
        host.start(["sh", "-c", "echo 1 > /sys/class/net/eth0/device/../remove"])
        outcome = pair.ours.get("until_lost(lambda: region.write(b'1').wait(60), 60)")
        assert outcome["kind"] == "ConnectionLost", outcome
        assert outcome["took"] < DEADLINE + SLACK
        note(
            "device removed",
            f"with its card removed too: {told(outcome)}",
            outcome["took"],
            "other transports",
        )
        # Silence is what is tested: threads that have nothing to do use no processor.
        used = pair.ours.get("time.process_time()")
        time.sleep(2)
        assert pair.ours.get("time.process_time()") - used < 1, "a thread is kept awake"
    finally:
        host.kill()
