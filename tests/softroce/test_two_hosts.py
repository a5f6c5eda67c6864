# SPDX-License-Identifier: Apache-2.0
"""Between two hosts over verbs: what arrives, and what happens when hosts, links or processes fail."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from rdmatensor.softroce import Lab
from softroce.guests import Peer, Site
from support.waits import until

DEADLINE = 4.0
# Two emulated hosts on a busy machine: their processes are scheduled late.
SLACK = 20.0
IMPATIENT = {"DEADLINE_MS": int(DEADLINE * 1000)}
SIZES = [1, 8, 255, 256, 257, 4096, 16384, 16385, 1 << 20, (1 << 20) + 1, 5_000_001]
LARGEST = 64 << 20


class Pair(NamedTuple):
    """A peer on each host; `ours` is connected to `theirs` as `remote`."""

    ours: Peer
    theirs: Peer


class Hosts(NamedTuple):
    lab: Lab
    first: Site
    second: Site

    def pair(self, region: int = 1 << 20, **settings: Any) -> Pair:
        ours, theirs = self.first.peer(**settings), self.second.peer(**settings)
        for peer in (ours, theirs):
            peer.run("from softroce.traffic import *")
        theirs.run("region = device.allocate(size, name='region')", size=region)
        connect(ours, theirs)
        return Pair(ours, theirs)

    def bystander(self, ours: Peer) -> None:
        """Another peer of `ours`, on its own host, whose connection must go on."""
        other = self.first.peer()
        other.run("region = device.allocate(4096, name='region')")
        ours.run(
            "spare = device.connect(address); kept = spare.region('region')", address=other.address
        )


def connect(ours: Peer, theirs: Peer) -> None:
    ours.run(
        "remote = device.connect(address, timeout=20); region = remote.region('region', timeout=20)",
        address=theirs.address,
    )


@pytest.fixture(scope="module")
def sites(two_hosts: Lab) -> Iterator[Hosts]:
    first, second = (Site(host) for host in two_hosts.hosts)
    yield Hosts(two_hosts, first, second)
    first.close()
    second.close()


@pytest.fixture
def hosts(sites: Hosts) -> Iterator[Hosts]:
    yield sites
    for host in sites.lab.hosts:
        if host.alive:
            host.link(True)
    sites.first.clear()
    sites.second.clear()


def works(pair: Pair) -> bool:
    """Whether the two can connect, write and read, whatever was before."""
    connect(*pair)
    pair.ours.run("region.write(b'again').wait(20)")
    return bool(pair.theirs.get("bytes(region.array[:5])") == b"again")


# ---- Who is let in ----------------------------------------------------------------------------------

NO_SECRET: dict[str, Any] = {
    "SECRET_FILE": ""
}  # instead of the lab's, with which all other tests run


def test_hosts_without_a_secret_do_not_meet(hosts: Hosts) -> None:
    theirs, lacking = hosts.second.peer(**NO_SECRET), hosts.first.peer(**NO_SECRET)
    having = hosts.first.peer()
    for peer, words in ((lacking, "is another host"), (having, "has a secret, and")):
        peer.run("from softroce.traffic import *")
        outcome = peer.get("attempt(lambda: device.connect(address))", address=theirs.address)
        assert (outcome["kind"], outcome["status"]) == ("ConnectionRefused", "REFUSED"), outcome
        assert words in outcome["text"] and "RDMATENSOR_SECRET_FILE" in outcome["text"]


def test_insecure_hosts_meet_without_a_secret(hosts: Hosts) -> None:
    assert works(hosts.pair(INSECURE=1, **NO_SECRET))
    assert hosts.first.says("RDMATENSOR_INSECURE=1 and no RDMATENSOR_SECRET_FILE: everybody who")


# ---- Without faults ----------------------------------------------------------------------------------


@pytest.mark.parametrize("registered", [True, False], ids=["registered", "unregistered"])
def test_every_size_there_and_back(hosts: Hosts, registered: bool) -> None:
    pair = hosts.pair(region=max(SIZES) + 64)
    assert pair.ours.get("remote.transport") == "verbs"
    for seed, size in enumerate(SIZES):
        sent = pair.ours.get(
            "write_and_read_back(device, region, size, seed, registered)",
            size=size,
            seed=seed,
            registered=registered,
        )
        assert pair.theirs.get("crc(region.array[at : at + size])", at=seed, size=size) == sent
        assert not pair.theirs.get("region.array[end:].any()", end=seed + size)


def test_largest(hosts: Hosts) -> None:
    pair = hosts.pair(region=LARGEST)
    pair.ours.start("sent = write_and_read_back(device, region, size, 0, True)", size=LARGEST)
    pair.ours.finish(120)
    assert pair.theirs.get("crc(region.array)") == pair.ours.get("sent")


@pytest.mark.parametrize("queue_pairs", [1, 4])
def test_thousand_tensors_in_flight(hosts: Hosts, queue_pairs: int) -> None:
    """Small ones, and notifications, in order; long ones over all queue pairs."""
    pair = hosts.pair(region=8 << 20, QUEUE_PAIRS=queue_pairs, STRIPE_BYTES=1 << 16)
    assert pair.ours.get("queue_pairs(os.getpid())") == queue_pairs
    pair.theirs.start("bad = check_flood(device, region.array, 1000)")
    pair.ours.run("transfers = flood(remote, region, 1000)")
    pair.theirs.finish(90)
    assert pair.theirs.get("bad") == []
    pair.ours.run("for transfer in transfers: transfer.wait(20)")
    striped = 3_000_003
    sent = pair.ours.get("write_and_read_back(device, region, size, 7, True)", size=striped)
    assert pair.theirs.get("crc(region.array[7 : 7 + size])", size=striped) == sent
    stats = pair.ours.get("device.stats()._asdict()")
    assert (stats["writes"], stats["notifies_sent"]) == (1001, 1000)


def test_batches_both_ways_at_once(hosts: Hosts) -> None:
    pair = hosts.pair()
    pair.ours.run("own = device.allocate(1 << 20, name='region')")
    connect(pair.theirs, pair.ours)
    # `region` is the other's now on both sides; their own is found by its name.
    play = """
        def play(device, remote, region, seed):
            for turn in range(20):
                data, back = pattern(1000, seed + turn), np.zeros(1000, np.uint8)
                batch = remote.batch().write(region, data, 2000)
                batch.read_into(region, back, 2000).notify(bytes([turn]), immediate=turn)
                remote.post(batch).wait(20)
                assert np.array_equal(back, data), turn
            notes = [device.next_notification(20) for _ in range(20)]
            return [(note.immediate, note.payload) for note in notes]
        seen = play(device, remote, region, seed)
    """
    pair.ours.start(play, seed=1)
    pair.theirs.start(play, seed=100)
    for peer in pair:
        peer.finish(60)
        assert peer.get("seen") == [(turn, bytes([turn])) for turn in range(20)]


# ---- The network ------------------------------------------------------------------------------------


def test_a_slow_network_is_no_fault(hosts: Hosts, note: Any) -> None:
    """A transfer, and a notification behind it, may take longer than DEADLINE_MS, if its parts do not."""
    deadline_s = 3
    pair = hosts.pair(region=LARGEST, DEADLINE_MS=1000 * deadline_s)
    host = hosts.lab.hosts[0]
    host.netem("rate", "50mbit", "limit", "10000")
    try:
        began = time.monotonic()
        pair.ours.start("region.write(pattern(size, 1), notify=7).wait(60)", size=LARGEST)
        assert pair.theirs.get("device.next_notification(60).immediate") == 7
        pair.ours.finish(30)
        took = time.monotonic() - began
        assert took > 2 * deadline_s, "the network was not slow enough to show it"
    finally:
        host.netem()
    assert pair.theirs.get("crc(region.array)") == pair.ours.get("crc(pattern(size, 1))")
    note("slow network", "nothing", None, "everything, at 50 Mbit/s")


@pytest.mark.parametrize("percent", [1, 5])
def test_lost_packets_are_sent_again(hosts: Hosts, percent: int, note: Any) -> None:
    pair = hosts.pair(region=2 << 20, DEADLINE_MS=30000)
    host = hosts.lab.hosts[0]
    host.netem("loss", f"{percent}%")
    try:
        pair.theirs.start("bad = check_flood(device, region.array, 200)")
        pair.ours.run("transfers = flood(remote, region, 200)")
        pair.theirs.finish(60)
        assert pair.theirs.get("bad") == []
        counters = host.run(["tc", "-s", "qdisc", "show", "dev", "eth0"]).stdout
        assert "dropped 0," not in counters
        note("packets lost", "nothing", None, f"everything, with {percent} % lost")
    finally:
        host.netem()


@pytest.mark.parametrize(
    ("fault", "rule"),
    [
        # All alike: different delays put packets out of order, and of a connection that sees little else the
        # device gives up.
        ("packets delayed", ["delay", "50ms"]),
        # Of those that are not delayed some overtake: each makes the receiver ask for what is missing.
        ("packets reordered", ["delay", "2ms", "reorder", "95%", "50%"]),
    ],
    ids=["delayed", "reordered"],
)
def test_late_packets_are_put_in_order(
    hosts: Hosts, fault: str, rule: list[str], note: Any
) -> None:
    pair = hosts.pair(region=2 << 20, DEADLINE_MS=60000)
    host = hosts.lab.hosts[0]
    host.netem(*rule)
    try:
        pair.theirs.start("bad = check_flood(device, region.array, 200)")
        pair.ours.run("transfers = flood(remote, region, 200)")
        pair.theirs.finish(240)
        assert pair.theirs.get("bad") == []
        assert pair.ours.get("remote.up")
        note(fault, "nothing", None, f"everything, with {' '.join(rule)}")
    finally:
        host.netem()


def test_short_cut_of_the_network_is_survived(hosts: Hosts, note: Any) -> None:
    """The hosts' own ports stay up, as they do with a switch between the hosts."""
    pair = hosts.pair(region=4 << 20, DEADLINE_MS=30000)
    host = hosts.lab.hosts[0]
    host.netem("limit", "10000")
    try:
        host.netem("loss", "100%")
        pair.theirs.start("bad = check_flood(device, region.array, 400)")
        pair.ours.start("transfers = flood(remote, region, 400)")
        time.sleep(0.5)
        counters = host.run(["tc", "-s", "qdisc", "show", "dev", "eth0"]).stdout
        host.netem("limit", "10000")
        assert "dropped 0," not in counters
        pair.ours.finish(60)
        pair.theirs.finish(60)
    finally:
        host.netem()
    assert pair.theirs.get("bad") == []
    assert pair.ours.get("remote.up")
    assert pair.ours.get("device.stats().channels_lost") == 0
    note("link down for a moment", "nothing", None, "everything, also what was under way")


def test_port_down_for_a_moment(hosts: Hosts, note: Any) -> None:
    """rxe gives a queue pair up at the first packet that its port does not take; if it had none to send
    just then, when its retries are used up.
    """
    pair = hosts.pair(**IMPATIENT)
    pair.ours.run("own = device.allocate(1 << 18); own.array[:] = 1")
    pair.ours.start("outcome = write_until_lost(region, own.array)")
    time.sleep(1)
    host = hosts.lab.hosts[0]
    cut = time.monotonic()
    host.link(False)
    pair.ours.finish(DEADLINE + SLACK + 10)
    took = time.monotonic() - cut
    host.link(True)
    outcome = pair.ours.get("outcome")
    note("own port down for a moment", told(outcome), took, "connect again")
    assert took < DEADLINE + SLACK
    at_once = "Work Request Flushed Error (5)" in outcome["text"]
    what, remedy = (
        ("Work Request Flushed Error (5)", "the own port is down")
        if at_once
        else ("transport retry counter exceeded (12)", "does not answer")
    )
    check_lost(outcome, pair, what, remedy)
    assert works(pair)


def test_long_loss_of_link_ends_within_the_deadline(hosts: Hosts, note: Any) -> None:
    """And nothing that was under way then reaches the peer's memory when the link is back."""
    pair = hosts.pair(**IMPATIENT)
    hosts.bystander(pair.ours)
    pair.ours.run("own = device.allocate(1 << 18); own.array[:] = 1")
    pair.ours.start("outcome = write_until_lost(region, own.array)")
    time.sleep(1)
    host = hosts.lab.hosts[1]
    host.link(False)
    cut = time.monotonic()
    pair.ours.finish(DEADLINE + SLACK + 10)
    took = time.monotonic() - cut
    assert took < DEADLINE + SLACK
    outcome = pair.ours.get("outcome")
    note("link down for long", told(outcome), took, "peers on other paths; connect again")
    assert outcome["written"] > 0
    check_lost(outcome, pair, "transport retry counter exceeded (12)", "does not answer")
    pair.ours.run("own.array[:] = 255")  # its owner uses it again
    pair.ours.run("kept.write(b'1').wait(5)")
    host.link(True)
    time.sleep(0.5)
    assert pair.theirs.get("int(region.array.max())") == 1
    assert works(pair)


def told(outcome: dict[str, Any]) -> str:
    """What a user sees of it."""
    return f"DEADLINE_MS={DEADLINE * 1000:.0f}: {outcome['kind']}: {outcome['text']}"


def check_lost(outcome: dict[str, Any], pair: Pair, what: str, remedy: str) -> None:
    """The error says what happened to which connection, and what it may mean."""
    assert outcome["kind"] == "ConnectionLost", outcome
    text = outcome["text"]
    assert what in text and remedy in text, text
    assert re.search(r"vendor error 0x?[0-9a-f]+, queue pair 0x[0-9a-f]{4,6} to ", text), text
    assert "rxe0:1" in text, text
    assert pair.theirs.address in text, text
    assert outcome["pending"] == 0, "every transfer ends"


# ---- Hosts and processes ------------------------------------------------------------------------------


def test_killed_host_is_lost_and_comes_back(hosts: Hosts, note: Any) -> None:
    pair = hosts.pair(region=1 << 18, **IMPATIENT)
    hosts.bystander(pair.ours)
    pair.ours.start("outcome = write_until_lost(region, pattern(1 << 18, 1))")
    time.sleep(1)
    hosts.second.host.kill()
    killed = time.monotonic()
    pair.ours.finish(DEADLINE + SLACK + 10)
    took = time.monotonic() - killed
    assert took < DEADLINE + SLACK
    outcome = pair.ours.get("outcome")
    check_lost(outcome, pair, "transport retry counter exceeded (12)", "host")
    note("host killed", told(outcome), took, "other peers; it can come back")
    pair.ours.run("kept.write(b'1').wait(5)")
    hosts.second.clear()
    theirs = hosts.second.peer()
    theirs.run("region = device.allocate(4096, name='region')")
    assert works(Pair(pair.ours, theirs))


def test_idle_connection_to_a_killed_host_is_noticed(hosts: Hosts) -> None:
    """Nothing is under way, and no end of stream comes from a dead host: it is probed for."""
    pair = hosts.pair(**IMPATIENT)
    hosts.second.host.kill()
    killed = time.monotonic()
    while pair.ours.get("remote.up"):
        assert time.monotonic() - killed < DEADLINE + SLACK, "nobody noticed"
        time.sleep(0.1)
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
    time.sleep(1)
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
    pair = hosts.pair(RING_BYTES=65536, **IMPATIENT)
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


@pytest.mark.parametrize("transport", ["verbs", "shm"])
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
    note("clock jump", "nothing", None, "everything, by hours back and forth", transport)


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


def test_removed_device(hosts: Hosts, note: Any) -> None:
    """SoftRoCE's driver waits with the end of a device until nobody uses it; a card goes at once."""
    pair, host = hosts.pair(**IMPATIENT), hosts.first.host
    try:
        host.start(["rdma", "link", "delete", "rxe0"])
        until("rxe0 stays", lambda: "rxe0" not in host.run(["rdma", "link"]).stdout)
        pair.ours.run("region.write(b'12345678').wait(20)")
        refused = pair.ours.get("attempt(rdmatensor.Device)")
        assert refused["kind"] == "Unsupported" and "is being removed" in refused["text"], refused
        note("device removed", f"Device(): Unsupported: {refused['text']}", None, "what is open")
        host.start(["sh", "-c", "echo 1 > /sys/class/net/eth0/device/../remove"])
        outcome = pair.ours.get("until_lost(lambda: region.write(b'1').wait(60), 60)")
        assert outcome["kind"] == "ConnectionLost", outcome
        assert outcome["took"] < DEADLINE + SLACK
        note(
            "device removed", f"its card too: {told(outcome)}", outcome["took"], "other transports"
        )
        used = pair.ours.get("time.process_time()")
        time.sleep(2)
        assert pair.ours.get("time.process_time()") - used < 1, "a thread is kept awake"
    finally:
        host.kill()
