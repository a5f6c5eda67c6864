# SPDX-License-Identifier: Apache-2.0
"""Between two hosts over verbs: who is let in, what arrives, and what a bad network does."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from rdmatensor.softroce import Host
from softroce.pairs import (
    DEADLINE,
    IMPATIENT,
    SLACK,
    Hosts,
    check_lost,
    connect,
    told,
    until_written,
    works,
)
from support.waits import until

SIZES = [1, 8, 255, 256, 257, 4096, 16384, 16385, 1 << 20, (1 << 20) + 1, 5_000_001]
LARGEST = 64 << 20
UNIMPAIRED = ("limit", "10000")  # a rule of netem, in packets that wait


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


@pytest.mark.long
def test_largest(hosts: Hosts) -> None:
    pair = hosts.pair(region=LARGEST)
    pair.ours.start("sent = write_and_read_back(device, region, size, 0, True)", size=LARGEST)
    pair.ours.finish(120)
    assert pair.theirs.get("crc(region.array)") == pair.ours.get("sent")


@pytest.mark.parametrize("queue_pairs", [1, 4])
def test_thousand_tensors_in_flight(hosts: Hosts, queue_pairs: int) -> None:
    """Small ones, and notifications, in order; long ones over all queue pairs."""
    pair = hosts.pair(region=8 << 20, QUEUE_PAIRS=queue_pairs, TEST_STRIPE_BYTES=1 << 16)
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


@pytest.fixture
def impaired(hosts: Hosts) -> Iterator[Host]:
    # A first rule stops the card for a moment, and rxe gives up a connection that sends then.
    host = hosts.lab.hosts[0]
    host.netem(*UNIMPAIRED)
    yield host
    host.netem()


@pytest.mark.long
def test_a_slow_network_is_no_fault(hosts: Hosts, impaired: Host, note: Any) -> None:
    """A transfer, and a notification behind it, may take longer than DEADLINE_MS, if its parts do not."""
    deadline_s = 3
    pair = hosts.pair(region=LARGEST, DEADLINE_MS=1000 * deadline_s)
    impaired.netem("rate", "30mbit", *UNIMPAIRED)
    began = time.monotonic()
    pair.theirs.start("note = device.next_notification(240).immediate")
    pair.ours.start("region.write(pattern(size, 1), notify=7).wait(240)", size=LARGEST)
    pair.ours.finish(250)  # first, because a failure of it is why the other waits in vain
    pair.theirs.finish(250)
    took = time.monotonic() - began
    assert took > 2 * deadline_s, "the network was not slow enough to show it"
    assert pair.theirs.get("note") == 7
    assert pair.theirs.get("crc(region.array)") == pair.ours.get("crc(pattern(size, 1))")
    note("slow network", "nothing", None, "everything, at 30 Mbit/s")


def queue_of(host: Host) -> str:
    """The counters of a host's queue of packets."""
    return str(host.run(["tc", "-s", "qdisc", "show", "dev", "eth0"]).stdout)


@pytest.mark.parametrize("percent", [pytest.param(1, marks=pytest.mark.long), 5])
def test_lost_packets_are_sent_again(hosts: Hosts, impaired: Host, percent: int, note: Any) -> None:
    pair = hosts.pair(region=2 << 20, DEADLINE_MS=60000)
    impaired.netem("loss", f"{percent}%")
    pair.theirs.start("bad = check_flood(device, region.array, 400)")
    pair.ours.run("transfers = flood(remote, region, 400)")
    pair.theirs.finish(240)
    assert pair.theirs.get("bad") == []
    assert "dropped 0," not in queue_of(impaired)
    note("packets lost", "nothing", None, f"everything, with {percent} % lost")


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
    hosts: Hosts, impaired: Host, fault: str, rule: list[str], note: Any
) -> None:
    pair = hosts.pair(region=2 << 20, DEADLINE_MS=60000)
    impaired.netem(*rule)
    pair.theirs.start("bad = check_flood(device, region.array, 200)")
    pair.ours.run("transfers = flood(remote, region, 200)")
    pair.theirs.finish(240)
    assert pair.theirs.get("bad") == []
    assert pair.ours.get("remote.up")
    note(fault, "nothing", None, f"everything, with {' '.join(rule)}")


def test_short_cut_of_the_network_is_survived(hosts: Hosts, impaired: Host, note: Any) -> None:
    """The hosts' own ports stay up, as they do with a switch between the hosts."""
    pair = hosts.pair(region=4 << 20, DEADLINE_MS=30000)
    impaired.netem("loss", "100%")
    pair.theirs.start("bad = check_flood(device, region.array, 400)")
    pair.ours.start("transfers = flood(remote, region, 400)")
    until("nothing is dropped", lambda: "dropped 0," not in queue_of(impaired))
    impaired.netem(*UNIMPAIRED)
    pair.ours.finish(60)
    pair.theirs.finish(60)
    assert pair.theirs.get("bad") == []
    assert pair.ours.get("remote.up")
    assert pair.ours.get("device.stats().channels_lost") == 0
    note("link down for a moment", "nothing", None, "everything, including transfers in progress")


def test_port_down_for_a_moment(hosts: Hosts, note: Any) -> None:
    """rxe gives a queue pair up at the first packet that its port does not take; if it had none to send
    just then, when its retries are used up.
    """
    pair = hosts.pair(**IMPATIENT)
    pair.ours.run("own = device.allocate(1 << 18); own.array[:] = 1")
    pair.ours.start("outcome = write_until_lost(region, own.array)")
    until_written(pair)
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
    until_written(pair)
    host = hosts.lab.hosts[1]
    host.link(False)
    cut = time.monotonic()
    pair.ours.finish(DEADLINE + SLACK + 10)
    took = time.monotonic() - cut
    assert took < DEADLINE + SLACK
    outcome = pair.ours.get("outcome")
    note("link down for long", told(outcome), took, "peers on other paths; connect again")
    check_lost(outcome, pair, "transport retry counter exceeded (12)", "does not answer")
    pair.ours.run("own.array[:] = 255")  # its owner uses it again
    pair.ours.run("kept.write(b'1').wait(5)")
    host.link(True)
    assert works(pair)  # which writes 5 bytes
    assert pair.theirs.get("int(region.array[5:].max())") == 1
