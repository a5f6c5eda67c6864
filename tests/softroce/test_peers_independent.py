# SPDX-License-Identifier: Apache-2.0
"""A device of rdmatensor and a peer that shares no code with it, on real verbs: honest, then lying."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from rdmatensor.softroce import Lab
from softroce.guests import Peer, Site

# pyverbs is a package of the distribution, built for its interpreter.
PYTHON = "/usr/bin/python3"
REM_ACCESS_ERR = "REM_ACCESS_ERR"
RECEIVES = 104  # of a connection, for notifications


class Both(NamedTuple):
    """A device of ours, and a process with the independent program."""

    ours: Peer
    other: Peer
    site: Site

    def connect(self, **lies: Any) -> None:
        self.other.run("peer = Independent(address, **lies)", address=self.ours.address, lies=lies)

    def refusal(self, **lies: Any) -> str:
        """What the device says to an address with these lies in it."""
        self.other.run(
            """
            try:
                peer, refusal = Independent(address, **lies), ""
            except Refused as refused:
                refusal = str(refused)
            """,
            address=self.ours.address,
            lies=lies,
        )
        return str(self.other.get("refusal"))

    def logged(self, words: str) -> bool:
        """Whether our process said so within a while."""
        return self.site.says(words)


@pytest.fixture(scope="module")
def sites(lab: Lab) -> Iterator[tuple[Site, Site]]:
    found = subprocess.run([PYTHON, "-c", "import pyverbs.qp"], capture_output=True, check=False)
    if found.returncode != 0:
        pytest.skip("no pyverbs here (apt install python3-pyverbs)")
    ours, other = Site(lab.hosts[0]), Site(lab.hosts[0], PYTHON, ["softroce.independent"])
    yield ours, other
    ours.close()
    other.close()


@pytest.fixture
def both(sites: tuple[Site, Site]) -> Iterator[Both]:
    ours, other = sites[0].peer(DEADLINE_MS=5000), sites[1].process()
    ours.run(
        """
        region = device.allocate(1 << 16, name='region')
        readable = device.allocate(4096, access=rdmatensor.Access.READ, name='readable')
        """
    )
    other.run("from support.bootstrap import Refused; from softroce.independent import *")
    yield Both(ours, other, sites[0])
    for site in sites:
        site.clear()


def still_serves(both: Both) -> bool:
    """Whether a new, honest peer can connect to the device and write into its region."""
    both.other.run(
        "honest = Independent(address); found = honest.find('region')", address=both.ours.address
    )
    assert both.other.get("honest.write(b'honest', found, 512)") == "SUCCESS"
    return bool(both.ours.get("bytes(region.array[512:518])") == b"honest")


# ---- Honest -----------------------------------------------------------------------------------------


def test_its_write_and_read_land_in_our_region(both: Both) -> None:
    both.connect()
    assert both.other.get("peer.find('region')[2:]") == (1 << 16, 3)
    both.other.run("region = peer.find('region')")
    assert both.other.get("peer.write(bytes(range(256)) * 100, region, 1000)") == "SUCCESS"
    assert both.ours.get("bytes(region.array[1000:26600])") == bytes(range(256)) * 100
    assert not both.ours.get("region.array[:1000].any() or region.array[26600:].any()")
    both.ours.run("readable.array[:] = np.arange(4096) % 251")
    both.other.run("readable = peer.find('readable')")
    assert both.other.get("peer.read(4096, readable)") == bytes(i % 251 for i in range(4096))


def test_our_write_and_read_reach_its_memory(both: Both) -> None:
    both.connect()
    assert both.other.get("peer.notify(b'come')") == "SUCCESS"
    both.ours.run("source = device.next_notification(20).source")
    assert both.ours.get("(source.name, source.transport)") == ("independent", "verbs")
    both.other.start("peer.answer_find(1 << 16)")
    both.ours.run("its = source.region('its', timeout=20)")
    both.other.finish()
    both.ours.run("its.write(np.arange(50000, dtype='uint8')).wait(20)")
    assert both.other.get("peer.data(50000)") == bytes(i % 256 for i in range(50000))
    assert both.ours.get("its.fetch_add(8, 1 << 32)") == 0x0F0E0D0C0B0A0908
    assert both.ours.get("its.compare_swap(8, 0x0F0E0D0D0B0A0908, 3)") == 0x0F0E0D0D0B0A0908
    assert both.other.get("peer.data(16)")[8:] == bytes([3] + [0] * 7)
    assert both.ours.get("bytes(its.read(100, 1000))") == bytes(
        (i + 100) % 256 for i in range(1000)
    )


def test_notifications_and_credit_both_ways(both: Both) -> None:
    """More than the receives of either side: it goes on because credit comes back."""
    both.connect()
    both.other.run("sent = [peer.notify(bytes(turn), turn) for turn in range(300)]")
    assert both.other.get("set(sent)") == {"SUCCESS"}
    both.ours.run("notes = [device.next_notification(20) for _ in range(300)]")
    assert both.ours.get("[(note.immediate, note.payload) for note in notes]") == [
        (turn, bytes(turn)) for turn in range(300)
    ]
    consumed, messages = both.other.get("peer.credit()")
    assert 300 - RECEIVES // 4 <= messages <= 300
    assert 0 < consumed <= both.other.get("peer._sent")
    both.ours.run("for turn in range(300): notes[0].source.notify(bytes(turn), turn)")
    both.other.run(
        """
        taken = []
        for turn in range(300):
            taken.append(peer.take())
            if turn % 25 == 24:
                assert peer.give_credit(peer._consumed, turn + 1) == 'SUCCESS'
        """
    )
    assert both.other.get("taken") == [(turn, bytes(turn)) for turn in range(300)]


# ---- Keys -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("attempt", ["wrong key", "read-only", "beyond the end", "read of another"])
def test_forged_access_is_refused_by_the_device(both: Both, attempt: str) -> None:
    both.connect()
    both.other.run("region, readable = peer.find('region'), peer.find('readable')")
    status = both.other.get(
        {
            "wrong key": "peer.write(b'forged', region, rkey=region.rkey ^ 0x5a)",
            "read-only": "peer.write(b'forged', readable)",
            "beyond the end": "peer.write(b'forged', region, (1 << 16) - 3)",
            "read of another": "peer.read(64, region, rkey=readable.rkey)",
        }[attempt]
    )
    assert status == REM_ACCESS_ERR
    assert not both.ours.get("region.array.any() or readable.array.any()")
    assert both.logged("the channel to independent at 127.0.0.1:9 ended")
    assert still_serves(both)


def test_keys_end_with_the_connection(both: Both) -> None:
    """What a peer allocated is gone with it, and the adapter's key for it good for nothing."""
    both.connect()
    both.other.run("its = peer.allocate(4096)")
    assert both.other.get("peer.write(b'here', its)") == "SUCCESS"
    before = both.ours.get("device.stats().regions")
    both.other.run("peer.close()")
    gone = """
        end = time.monotonic() + 60
        while device.stats().regions >= before and time.monotonic() < end: time.sleep(0.02)
    """
    both.ours.run(gone, before=before)
    both.connect()
    assert both.other.get("peer.write(b'late', its)") == REM_ACCESS_ERR
    assert still_serves(both)


def test_without_the_secret_nobody_is_let_in(both: Both) -> None:
    refusal = both.refusal(secret=b"some other secret, just as long")
    assert "independent does not have the secret" in refusal
    assert both.logged("a connection from this host was refused: independent does not have")
    assert still_serves(both)


# A process of another user, with what it needs: RDMA's device files, and the secret in a file of its own.
STRANGER = """
import os, pathlib, tempfile
file = os.environ["RDMATENSOR_SECRET_FILE"]
if file:
    own = tempfile.mkstemp()[1]
    pathlib.Path(own).write_bytes(pathlib.Path(file).read_bytes())
    os.chown(own, 65534, 65534)
    os.environ["RDMATENSOR_SECRET_FILE"] = own
os.setuid(65534)
from softroce.traffic import *
device = Device()
outcome = attempt(lambda: globals().update(remote=device.connect(address, timeout=20)))
"""
EVERYTHING = {"TRANSPORTS": "shm,verbs"}
NO_SECRET = {"SECRET_FILE": ""}


def test_another_user_comes_over_verbs_if_it_has_the_secret(both: Both) -> None:
    """Shared memory is for one user. Without a secret verbs is as well: of this host, anybody might come."""
    site = both.site
    site.host.run(["sh", "-c", "chmod 666 /dev/infiniband/uverbs*"])
    outcomes = []
    for settings in (EVERYTHING, EVERYTHING | NO_SECRET):
        theirs, stranger = site.peer(**settings), site.process(**settings)
        theirs.run("region = device.allocate(4096, name='region')")
        stranger.run(STRANGER, address=theirs.address)
        outcomes.append(stranger.get("outcome"))
        if not outcomes[-1]["kind"]:
            assert stranger.get("remote.transport") == "verbs"
            stranger.run("remote.region('region').write(b'mine').wait(20)")
            assert theirs.get("bytes(region.array[:4])") == b"mine"
    assert [each["status"] for each in outcomes] == ["OK", "NO_TRANSPORT"], outcomes
    text = outcomes[1]["text"]
    assert "shm: the peer runs as user 0, this process as user 65534" in text
    assert "verbs: without a secret it is only for processes of one user on one host" in text


def test_without_a_secret_only_our_user_comes_over_verbs(sites: tuple[Site, Site]) -> None:
    ours = sites[0].peer(DEADLINE_MS=5000, **NO_SECRET)
    ours.run("region = device.allocate(1 << 16, name='region')")
    other = sites[1].process()
    other.run("from support.bootstrap import Refused; from softroce.independent import *")
    both = Both(ours, other, sites[0])
    assert "only for processes of its own user" in both.refusal(secret=b"")
    friend = sites[0].peer(**NO_SECRET)
    friend.run("remote = device.connect(address, timeout=20)", address=ours.address)
    assert friend.get("remote.transport") == "verbs"
    friend.run("remote.region('region').write(b'ours').wait(20); mine = remote.allocate(4096)")
    assert ours.get("bytes(region.array[:4])") == b"ours"
    ours.run("device.close()")
    gone = "until_lost(lambda: mine.write(b'1').wait(20))['kind']"
    friend.run("from softroce.traffic import *")
    assert friend.get(gone) == "ConnectionLost"
    for site in sites:
        site.clear()


def test_forged_key_for_our_own_write(both: Both) -> None:
    """It gives a key that it never made: our write fails, with the cause."""
    both.connect()
    assert both.other.get("peer.notify(b'come')") == "SUCCESS"
    both.ours.run(
        "from softroce.traffic import attempt; source = device.next_notification(20).source"
    )
    both.other.start("peer.answer_find(4096, rkey=peer.memory.rkey ^ 0x5a)")
    both.ours.run("its = source.region('its', timeout=20)")
    both.other.finish()
    outcome = both.ours.get("attempt(lambda: its.write(b'1234').wait(20))")
    assert outcome["status"] == "ACCESS", outcome
    assert "remote access error (10), vendor error 0x" in outcome["text"]
    assert "its key is wrong" in outcome["text"]
    assert still_serves(both)


# What is for one peer: keys that another has guessed, or overheard.
STOLEN = {
    "what it allocated": "its",
    "ring": "Region(peer.theirs['ring'], peer.theirs['rkey'], 4096, 3)",
    "credit words": "Region(peer.theirs['credit'], peer.theirs['rkey'], 16, 3)",
}


def steal(sites: tuple[Site, Site], windows: str, memory: str) -> tuple[Both, str]:
    """What a peer's write into memory of another comes to. The other knows nothing of it."""
    ours, other = sites[0].peer(DEADLINE_MS=5000, WINDOWS=windows), sites[1].process()
    other.run("from support.bootstrap import Refused; from softroce.independent import *")
    both = Both(ours, other, sites[0])
    ours.run("region = device.allocate(1 << 16, name='region')")
    both.connect()
    other.run("thief = Independent(address)", address=ours.address)
    other.run("its = peer.allocate(4096)")
    return both, str(other.get(f"thief.write(bytes(8), {STOLEN[memory]})"))


@pytest.mark.parametrize("memory", STOLEN)
def test_keys_of_another_peer_open_nothing(sites: tuple[Site, Site], memory: str) -> None:
    """Memory windows: the device refuses whoever comes through another queue pair."""
    try:
        both, outcome = steal(sites, "on", memory)
        assert outcome == REM_ACCESS_ERR
        assert both.other.get("peer.write(b'rightful', its)") == "SUCCESS"
        assert both.other.get("peer.read(8, its)") == b"rightful"
        assert both.other.get("peer.notify(b'here')") == "SUCCESS"
        assert both.ours.get("device.next_notification(20).payload") == b"here"
        assert still_serves(both)
    finally:
        for site in sites:
            site.clear()


@pytest.mark.parametrize("memory", STOLEN)
def test_without_windows_they_do(sites: tuple[Site, Site], memory: str) -> None:
    """So that the test above can fail: keys of the device itself are good for every queue pair."""
    try:
        assert steal(sites, "off", memory)[1] == "SUCCESS"
    finally:
        for site in sites:
            site.clear()


# ---- Lies about itself ------------------------------------------------------------------------------

IMPOSSIBLE: list[dict[str, Any]] = [
    {"queue_count": 0, "queues": []},
    {"queues": [(17, 1)] * 9},
    {"queue_count": 2},
    {"queues": [(1 << 24, 1)]},
    {"queues": [(17, 1 << 31)]},
    {"ring_capacity": 65535},
    {"ring_capacity": 16},
    {"ring_capacity": 1 << 63},
    {"ring_capacity": 1 << 30},
    {"notifies": 0},
    {"notifies": 1 << 31},
    {"reads": 0},
    {"mtu": 0},
    {"mtu": 6},
    {"lid": 1 << 16},
    {"gid": bytes(15)},
    {"gid_type": 9},
    {"link_layer": 1},
    {"link_layer": 77},
]


def test_impossible_addresses_are_refused(both: Both) -> None:
    for lies in IMPOSSIBLE:
        refusal = both.refusal(**lies)
        assert refusal, f"the device accepted {lies}"
        assert any(word in refusal for word in ("impossible", "malformed", "port", "pinned")), (
            refusal
        )
    assert still_serves(both)


def test_unreachable_addresses_cost_one_connection(both: Both) -> None:
    """What can only be found out by trying: a queue pair, or a host, that is not there."""
    gid = bytes(10) + b"\xff\xff" + bytes([10, 77, 0, 99])
    for lies in ({"queues": [(0xABCDEF, 1)]}, {"gid": gid}, {"gid": bytes(16)}):
        both.refusal(**lies)
    assert still_serves(both)


MALFORMED = {
    "beyond the ring": "peer.put(peer.records([b'x']), announced=1 << 31)",
    "not a record": "peer.put(peer.records([b'x']), announced=8)",
    "garbage": "peer.put(b'\\xff' * 64)",
    "unknown kind": "peer.put(peer.records([b'x'], kind=3))",
    "too long": "peer.put(RECORD.pack(1 << 30, MESSAGE, 0) + bytes(16))",
    "most": "peer.put(bytes(64), announced=0xffffffff)",
}


def test_malformed_notifications_end_the_connection(both: Both) -> None:
    for name, lie in MALFORMED.items():
        both.connect()
        both.other.get(lie)
        assert both.other.get("peer.hung_up()"), name
        both.ours.run("lost = device.stats().channels_lost")
        assert both.ours.get("lost") == list(MALFORMED).index(name) + 1
    assert both.logged("ended: the peer announced more notifications than its ring holds")
    assert both.logged("ended: the peer wrote a malformed notification")
    assert still_serves(both)


def test_notifications_without_credit_end_the_connection(both: Both) -> None:
    """Receives are shared by all peers: one that takes more than its part is cut off."""
    both.connect()
    both.ours.stop()
    try:
        both.other.run("for _ in range(110): assert peer.put(peer.records([b'x'])) == 'SUCCESS'")
    finally:
        both.ours.resume()
    assert both.logged("without credit")
    assert still_serves(both)


@pytest.mark.parametrize(
    "credit", ["(1 << 40, 0)", "(0, 1 << 40)", "(16, 0)"], ids=["bytes", "messages", "little"]
)
def test_credit_for_what_was_never_sent(both: Both, credit: str) -> None:
    both.connect()
    assert both.other.get("peer.notify(b'come')") == "SUCCESS"
    both.ours.run(
        "from softroce.traffic import until_lost; source = device.next_notification(20).source"
    )
    both.other.get(f"peer.give_credit{credit}")
    both.ours.start("lost = until_lost(lambda: source.notify(b'x').wait(20))")
    both.ours.finish()
    assert both.ours.get("lost")["kind"] == "ConnectionLost", both.ours.get("lost")
    assert "credit" in both.ours.get("lost")["text"]
    assert still_serves(both)


def test_credit_without_news_ends_the_connection(both: Both) -> None:
    """Its messages take receives too, which need no credit."""
    both.connect()
    both.other.run("for _ in range(60): peer.give_credit(0, 0)")
    assert both.logged("returns credit again and again")
    assert still_serves(both)


def test_unknown_control_message(both: Both) -> None:
    both.connect()
    both.other.run("peer.say(99, b'')")
    assert both.other.get("peer.hung_up()")
    assert still_serves(both)
