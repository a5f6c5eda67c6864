# SPDX-License-Identifier: Apache-2.0
"""Strangers that speak the protocol by hand: proofs that are missing, wrong, replayed or reflected."""

from __future__ import annotations

import fcntl
import os
import random
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

import rdmatensor
from security.devices import OTHER, SECRET, Open, works
from security.strangers import SOMEBODY, another_process, as_user
from support.bootstrap import (
    CONNECTING,
    HEADER,
    LISTENING,
    READY,
    Line,
    Meeting,
    Reader,
    Refused,
    message,
    pack_hello,
    proof,
    text,
    unpack_hello,
)

CAPACITY = 65536
RING = 4096 + CAPACITY
BUNDLE = struct.pack("=Q", CAPACITY)
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW


@pytest.fixture
def device(open_device: Open) -> rdmatensor.Device:
    return open_device(SECRET)


@contextmanager
def descriptors() -> Iterator[list[int]]:
    """Those of an ATTACH over shared memory: a ring, and an eventfd."""
    ring = os.memfd_create("ring", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(ring, RING)
    fcntl.fcntl(ring, fcntl.F_ADD_SEALS, SEALS)
    event = os.eventfd(0)
    yield [ring, event]
    os.close(ring)
    os.close(event)


@contextmanager
def met(device: rdmatensor.Device, secret: bytes = SECRET, **fields: Any) -> Iterator[Meeting]:
    """A stranger over the device's unix socket, both of whom have said HELLO."""
    line = Line(device.address)
    try:
        name = Meeting(line, secret, **fields).hello()["local_name"]
    finally:
        line.close()
    line = Line(name)
    try:
        meeting = Meeting(line, secret, **fields)
        meeting.hello()
        yield meeting
    finally:
        line.close()


def attach(meeting: Meeting, data: bytes) -> bytes:
    """Sends an ATTACH with its descriptors; the device's answer. Refused, EOFError."""
    with descriptors() as fds:
        socket.send_fds(meeting.line.socket, [data], fds)
    meeting.said.append(data)
    return meeting.answer()


def test_the_right_proof_opens_a_channel(device: rdmatensor.Device) -> None:
    """What the other tests change a part of."""
    with met(device) as meeting:
        attach(meeting, meeting.attach_message("shm", BUNDLE))
        meeting.line.send(READY)
        meeting.line.send(4, struct.pack("<QI", 4096, 3), sequence=7)
        kind, sequence, _ = meeting.line.receive()
        assert (kind, sequence) == (5, 7), "it allocates a region for us"


def test_no_proof(device: rdmatensor.Device) -> None:
    for wrong in (b"", bytes(32)):
        with met(device) as meeting, pytest.raises(Refused, match="does not have the secret"):
            attach(meeting, meeting.attach_message("shm", BUNDLE, given=wrong))


def test_proof_of_another_length_is_malformed(device: rdmatensor.Device) -> None:
    for wrong in (bytes(31), bytes(33), bytes(200)):
        with met(device) as meeting, pytest.raises(Refused, match="malformed"):
            attach(meeting, meeting.attach_message("shm", BUNDLE, given=wrong))


def test_who_claims_to_have_no_secret(device: rdmatensor.Device) -> None:
    with pytest.raises(Refused, match="has a secret, and stranger has none"):
        Meeting(Line(device.address), SECRET, has_secret=False, name="stranger").hello()


def test_attach_without_hello(device: rdmatensor.Device) -> None:
    with met(device) as meeting:
        name = meeting.theirs["local_name"]
        recorded = meeting.attach_message("shm", BUNDLE)
    line = Line(name)
    line.socket.sendall(recorded)
    with pytest.raises(Refused, match="instead of a hello"):
        line.receive()
    line.close()


def test_nobody_gets_a_proof_to_try_secrets_on(device: rdmatensor.Device) -> None:
    """The device proves itself only to who has proved itself first."""
    with met(device, OTHER) as meeting, pytest.raises(Refused) as caught:
        attach(meeting, meeting.attach_message("shm", BUNDLE))
    assert "does not have the secret" in str(caught.value)


def test_replayed_connection(device: rdmatensor.Device) -> None:
    """Every byte of a connection that was let in, on another one."""
    nonce = os.urandom(32)
    with met(device, nonce=nonce) as meeting:
        recorded = meeting.attach_message("shm", BUNDLE)
        attach(meeting, recorded)
        hello = meeting.said[0]
    with met(device, nonce=nonce) as meeting, pytest.raises(Refused, match="have the secret"):
        assert meeting.said[0] == hello
        attach(meeting, recorded)


def test_proof_of_the_other_side(device: rdmatensor.Device) -> None:
    with met(device) as meeting:
        body = text("shm") + text(BUNDLE) + bytes(4)
        wrong = proof(SECRET, LISTENING, meeting.said, body)
        assert wrong != proof(SECRET, CONNECTING, meeting.said, body)
        with pytest.raises(Refused, match="does not have the secret"):
            attach(meeting, meeting.attach_message("shm", BUNDLE, given=wrong))


def flipped(data: bytes, at: int, chance: random.Random) -> bytes:
    return data[:at] + bytes([data[at] ^ 1 << chance.randrange(8)]) + data[at + 1 :]


def outcome(meeting: Meeting, data: bytes) -> str:
    """What becomes of a connection over TCP after this ATTACH, and nothing more."""
    try:
        meeting.line.socket.sendall(data)
        meeting.line.socket.shutdown(socket.SHUT_WR)
        meeting.line.receive()
    except Refused as refused:
        return str(refused)
    except (EOFError, OSError):
        return "hung up"
    return "let in"


LET_IN = "not attached over a socket of this kind"  # with the right proof, over TCP


def test_every_bit_of_the_hellos_counts(device: rdmatensor.Device) -> None:
    """Somebody on the way changes one bit of what either side says."""
    chance = random.Random(1)

    def meeting() -> Meeting:
        opened = Meeting(Line(device.address), SECRET)
        opened.hello()
        return opened

    good = meeting()
    assert LET_IN in outcome(good, good.attach_message("shm", BUNDLE))
    for whose in (0, 1):
        for at in range(len(good.said[whose])):
            changed = meeting()
            changed.said[whose] = flipped(changed.said[whose], at, chance)
            data = changed.attach_message("shm", BUNDLE)
            assert "does not have the secret" in outcome(changed, data), (whose, at)
            changed.line.close()
    good.line.close()


def test_every_bit_of_the_attach_counts(device: rdmatensor.Device) -> None:
    chance = random.Random(2)
    size = len(Meeting(Line(device.address), SECRET).attach_message("shm", BUNDLE))
    for at in range(size):
        meeting = Meeting(Line(device.address), SECRET)
        meeting.hello()
        data = flipped(meeting.attach_message("shm", BUNDLE), at, chance)
        result = outcome(meeting, data)
        assert LET_IN not in result and result != "let in", (at, result)
        meeting.line.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
@pytest.mark.parametrize("secret", [SECRET, b""])
def test_another_user_of_this_host(open_device: Open, secret: bytes) -> None:
    """With the right secret and without one: shared memory is for one user."""
    device = open_device(secret)
    with met(device, secret) as meeting:
        name = meeting.theirs["local_name"]

    def knock() -> object:
        with suppress(BrokenPipeError, ConnectionResetError, EOFError):
            return Meeting(Line(name), secret).hello()
        return "hung up on"

    with another_process(as_user(SOMEBODY, knock)) as outcome:
        assert outcome == "hung up on"
    assert works(open_device(secret), device)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_another_user_is_told_which_transports_refused_and_why(open_device: Open) -> None:
    """Not the first refusal alone: another transport might have served."""
    device = open_device()
    connect = as_user(SOMEBODY, lambda: rdmatensor.Device().connect(device.address))
    with another_process(connect) as outcome:
        assert outcome.startswith("ConnectionRefused"), outcome
        assert f"shm: the peer runs as user 0, this process as user {SOMEBODY}" in outcome, outcome
        assert "run both as one; verbs: not in RDMATENSOR_TRANSPORTS" in outcome, outcome


def test_without_a_secret_nobody_comes_over_tcp(open_device: Open) -> None:
    """It would be any user of this host: only the unix socket tells who it is."""
    device = open_device()
    line = Line(device.address)
    with pytest.raises(Refused, match="only for processes of its own user, over its unix socket"):
        meeting = Meeting(line, b"")
        meeting.hello()
        meeting.attach("tcp", b"")
    line.close()


# ---- Impostors that listen ------------------------------------------------------------------------------


class Impostor:
    """Listens where a device would, and says what it likes."""

    def __init__(self, **fields: Any) -> None:
        self._fields = fields
        name = f"impostor-{os.getpid()}-{os.urandom(8).hex()}"
        self._local = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._local.bind(b"\0" + name.encode())
        self._local.listen()
        self._tcp = socket.create_server(("127.0.0.1", 0))
        host, port = self._tcp.getsockname()
        self.address = f"{host}:{port}"
        self._fields["local_name"] = name
        self.heard: list[bytes] = []
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        with self._tcp, self._local, suppress(OSError):
            for listener in (self._tcp, self._local):
                listener.settimeout(20)
                line, _ = listener.accept()
                line.settimeout(20)
                with line:
                    theirs = line.recv(4096)
                    if not theirs:
                        return
                    # Its own words, but for what is needed to be found.
                    hello = unpack_hello(Reader(theirs[HEADER.size :]))
                    line.sendall(message(1, pack_hello({**hello, **self._fields})))
                    if listener is self._local:
                        self.heard.append(line.recv(4096))
                        if self.heard[0]:
                            line.sendall(self.heard[0])
                    line.recv(4096)

    def close(self) -> None:
        with suppress(OSError):  # nobody came to its unix socket
            Line(self._fields["local_name"]).close()
        self._thread.join(30)
        assert not self._thread.is_alive()


def test_reflected_proof(open_device: Open) -> None:
    """It says whatever we say, and so has a proof that our secret made."""
    ours, good = open_device(SECRET), open_device(SECRET)
    impostor = Impostor(name="impostor")
    with pytest.raises(rdmatensor.ConnectionRefused, match="impostor does not have the secret"):
        ours.connect(impostor.address)
    impostor.close()
    assert impostor.heard[0], "it got as far as our proof"
    assert works(ours, good)


def test_impostor_that_asks_for_no_proof(open_device: Open) -> None:
    ours = open_device(SECRET)
    impostor = Impostor(name="impostor", has_secret=False)
    with pytest.raises(rdmatensor.ConnectionRefused, match="has a secret, and impostor has none"):
        ours.connect(impostor.address)
    impostor.close()
    assert not impostor.heard
